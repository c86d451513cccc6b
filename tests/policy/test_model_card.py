"""Model cards: what the hub's library reads back from them, and texts that try to break out of them."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import huggingface_hub
import pytest
from huggingface_hub import ModelCard
from markdown_it import MarkdownIt

from oar_lightning.policy.model_card import (
    EVALUATION,
    FILE,
    MARK,
    TRAINING,
    UNKNOWN,
    Accuracy,
    Base,
    CardFacts,
    DataSource,
    base_of,
    inline,
    licence_of,
    model_card,
    write_card,
)

FACTS = CardFacts(
    name="oar_g",
    step=160,
    method="reinforcement learning",
    base=Base("Qwen/Q (revision r1)", "Qwen/Q", "apache-2.0"),
    settings=[("gate", "tau=0.4"), ("scorer", "OarG: num_draws=1")],
    data=[
        DataSource(TRAINING, "openai/gsm8k, split train", "7473", "mit", "openai/gsm8k"),
        DataSource(f"{EVALUATION}math", "org/math", "500", UNKNOWN, "org/math"),
    ],
    accuracies=[Accuracy("math", "avg_at_4", "10.0 % [8.0, 12.0]", "20.0 % [17.5, 22.5]", 0.2)],
    measured=(0, 160),
    command="python -m oar_lightning +experiment=oar_g",
    revision="abc",
    seed=3,
)


def tables(card: str) -> list[list[list[str]]]:
    """The tables of a card as a Markdown parser sees them: text of cells, row by row."""
    found: list[list[list[str]]] = []
    for token in MarkdownIt("commonmark").enable("table").parse(ModelCard(card).text):
        if token.type == "table_open":
            found.append([])
        elif token.type == "tr_open":
            found[-1].append([])
        elif token.type == "inline" and found and token.level >= 4:
            found[-1][-1].append("".join(child.content for child in token.children or []))
    return found


def test_the_hub_s_library_reads_its_metadata() -> None:
    data = ModelCard(model_card(FACTS)).data
    assert (data.license, data.base_model, data.datasets) == ("apache-2.0", "Qwen/Q", ["openai/gsm8k"])
    assert (data.library_name, data.pipeline_tag, data.tags) == ("transformers", "text-generation", ["oar_lightning"])
    (result,) = data.eval_results
    assert (result.dataset_type, result.dataset_name) == ("org/math", "math")
    assert (result.metric_name, result.metric_value) == ("avg_at_4", 0.2)


def test_a_reader_finds_method_data_accuracies_and_how_it_was_made() -> None:
    card = model_card(FACTS)
    method, data, accuracy = tables(card)
    assert method[1:] == [["gate", "tau=0.4"], ["scorer", "OarG: num_draws=1"]]
    assert data[1] == ["training", "openai/gsm8k, split train", "7473", "mit"]
    assert accuracy == [
        ["evaluation set", "metric", "before (step 0)", "after (step 160)"],
        ["math", "avg_at_4", "10.0 % [8.0, 12.0]", "20.0 % [17.5, 22.5]"],
    ]
    assert "```bash\npython -m oar_lightning +experiment=oar_g\n```" in card
    assert "Code revision: abc. Seed: 3." in card
    assert "(Qwen/Q (revision r1)): apache-2.0." in card
    assert "another run" not in card
    forked = model_card(dataclasses.replace(FACTS, former=[(40, ["seed"]), (80, ["gate.tau", "optimizer.lr"])]))
    assert "(revision r1). Until step 40 it was another run, with another seed. Until step 80" in forked
    assert "Until step 80 it was another run, with another gate.tau, optimizer.lr.\n" in forked


def test_what_is_not_known_is_said_and_not_made_up() -> None:
    card = model_card(CardFacts("x", 7, "training", None))
    assert card.count("the run’s config is not in its folder") == 3
    assert "No evaluation of this policy is recorded." in card
    assert f"Of the policy that it started from: {UNKNOWN}." in card
    data = ModelCard(card).data
    assert (data.license, data.base_model, data.datasets, data.eval_results) == (None, None, None, None)
    never = model_card(dataclasses.replace(FACTS, measured=(0, 0)))
    assert tables(never)[2] == [["evaluation set", "metric", "before (step 0)"], ["math", "avg_at_4", "10.0 % [8.0, 12.0]"]]
    assert "The policy itself, of step 160, was not evaluated." in never
    late = model_card(dataclasses.replace(FACTS, step=170))
    assert "The policy itself, of step 170, was not evaluated." in late
    assert ModelCard(late).data.eval_results is None, "figures of another step are not this policy's"


NASTY = [
    "a | b\n| c |",
    "---\nlicense: mit\n---",
    "```\n# Heading\n```",
    "<script>alert(1)</script><!-- -->",
    "[x](javascript:alert(1)) ![y](http://z) `code` *b* _i_ $x$ ~~s~~ &amp; \\",
    "{{ jinja }} {% for %}",
    "x\u202ey\x00\ud800\u2028z\ufeff",
    "key: [a, 'b', \"c\"] #! &anchor *alias !!python/object:os.system",
    "x" * 100_000,
    "",
]


@pytest.mark.parametrize("text", NASTY, ids=range(len(NASTY)))
def test_no_text_breaks_out(text: str, tmp_path: Path) -> None:
    facts = CardFacts(
        name=text,
        step=1,
        method="training",
        base=Base(text, None, text),
        settings=[(text, text)],
        data=[DataSource(TRAINING, text, text, text), DataSource(f"{EVALUATION}{text}", text, text, text)],
        accuracies=[Accuracy(text, text, text, text, 0.5)],
        measured=(0, 1),
        command=text,
        revision=text,
        seed=1,
    )
    write_card(tmp_path, facts)
    card = (tmp_path / FILE).read_text(encoding="utf-8")
    assert len(card) < 120_000
    data = ModelCard(card).data
    assert (data.license, data.base_model, data.datasets) == (None, None, None)
    assert [[len(row) for row in table] for table in tables(card)] == [[2, 2], [4, 4, 4], [4, 4]]
    tokens = MarkdownIt("commonmark").enable("table").parse(ModelCard(card).text)
    assert [t.type for t in tokens if t.type in ("html_block", "fence")] == ["html_block"] + ["fence"] * bool(text)
    kinds = {child.type for token in tokens for child in token.children or []}
    assert kinds <= {"text", "text_special", "softbreak", "code_inline"}, "neither links nor emphasis nor HTML"
    assert sum(t.type == "heading_open" for t in tokens) == 6


def test_text_reads_as_it_was() -> None:
    rendered = MarkdownIt("commonmark").render(inline("a|b <i> `c` *d* $e$ [f](g) \\ &lt;"))
    assert rendered == "<p>a|b &lt;i&gt; `c` *d* $e$ [f](g) \\ &amp;lt;</p>\n"


def test_a_page_that_is_not_ours_stays(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / FILE).write_text("# My project\n")
    write_card(tmp_path, FACTS)
    assert (tmp_path / FILE).read_text() == "# My project\n"
    assert "is not overwritten by a model card" in caplog.text
    (tmp_path / FILE).write_text(f"old\n{MARK}\n")
    write_card(tmp_path, FACTS)
    assert (tmp_path / FILE).read_text() == model_card(FACTS)


def test_licences_are_those_that_cards_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    card = tmp_path / FILE
    for front, licence in (
        ("license: apache-2.0", "apache-2.0"),
        ("license: [mit, gpl-3.0]", "mit, gpl-3.0"),
        ("license: other\nlicense_name: qwen-research", "other (qwen-research)"),
        ("tags: [x]", UNKNOWN),
        ("license: {a: b}", UNKNOWN),
        ("- a\n- b", UNKNOWN),
        ("license: [unclosed", UNKNOWN),
    ):
        card.write_text(f"---\n{front}\n---\n# x\n")
        assert licence_of(tmp_path, None) == licence
    card.write_bytes(b"\xff\xfe")
    assert licence_of(tmp_path, None) == licence_of(tmp_path / "none", None) == UNKNOWN
    asked = []

    def cached(repo: str, file: str, **options: str | None) -> str | None:
        asked.append((repo, file, options["repo_type"]))
        return str(card) if repo == "a/cached" else None

    monkeypatch.setattr(huggingface_hub, "try_to_load_from_cache", cached)
    card.write_text("---\nlicense: mit\n---\n")
    assert licence_of(None, "a/cached", "dataset") == "mit"
    assert licence_of(None, "a/none", "dataset") == f"{UNKNOWN} (https://huggingface.co/datasets/a/none)"
    assert asked == [("a/cached", FILE, "dataset"), ("a/none", FILE, "dataset")]


def test_bases(tmp_path: Path) -> None:
    assert base_of({"name": "chain"}) == Base("chain, which comes with oar_lightning", licence="apache-2.0")
    assert base_of({"vocab_size": 100}) == Base("a random policy", licence=None)
    (tmp_path / FILE).write_text("---\nlicense: mit\n---\n")
    assert base_of({"name": str(tmp_path)}) == Base(f"the local folder {tmp_path.name}", licence="mit"), "its path is private"
    hub = base_of({"name": "no-such/model", "revision": "v1", "lora": {"r": 4}})
    assert hub.words == "no-such/model (revision v1) with LoRA adapters, which are merged"
    assert (hub.hub_id, hub.licence) == ("no-such/model", f"{UNKNOWN} (https://huggingface.co/no-such/model)")
    assert json.dumps(model_card(dataclasses.replace(FACTS, base=hub)))


def test_a_base_without_an_owner_is_the_hubs_where_its_cache_has_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path))
    cached = tmp_path / "models--gpt2"
    for file, text in (("refs/v1", "c0ffee"), ("snapshots/c0ffee/config.json", "{}")):
        (cached / file).parent.mkdir(parents=True)
        (cached / file).write_text(text)
    found = base_of({"name": "gpt2", "revision": "v1"})
    assert (found.words, found.hub_id) == ("gpt2 (revision v1)", "gpt2")
    assert base_of({"name": "my_policy"}) == Base("the local folder my_policy", licence=UNKNOWN)
