"""Configs held against the signatures of their targets."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import pytest

from oar_lightning.common.config_check import ConfigError, check_keys, check_targets, check_value
from oar_lightning.policy.token_budget import TokenBudget

GATE = {"_target_": "oar_lightning.credit.gates.BilevelGate", "tau": 0.4}
TAU = "gate.tau is a quantile (with gate.threshold=absolute a normalised score) and must be a number in [0, 1], got"
SAMPLING = {"_target_": "oar_lightning.rollout.SamplingConfig"}


def message(config: Mapping[str, Any]) -> str:
    with pytest.raises(ConfigError) as caught:
        check_targets(config)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_unknown_keys_get_a_suggestion() -> None:
    text = message({"gate": GATE | {"betta": 2.0}})
    assert text.startswith("unknown key gate.betta; did you mean gate.beta? ")
    assert all(key in text for key in ("tau", "floor", "mode", "renormalize"))
    assert "did you mean" not in message({"gate": GATE | {"zzz": 1}})


def test_check_keys_at_the_top_level() -> None:
    check_keys(["seed"], ["seed", "name"], "")
    with pytest.raises(ConfigError, match=r"unknown key sed; did you mean seed\? the keys here are: name, seed"):
        check_keys(["sed"], ["seed", "name"], "")


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({"gate": GATE | {"tau": "high"}}, f"{TAU} 'high'"),
        ({"gate": GATE | {"tau": None}}, f"{TAU} None"),
        ({"gate": GATE | {"tau": True}}, f"{TAU} True"),
        ({"gate": GATE | {"renormalize": 1}}, "gate.renormalize must be true or false, got 1"),
        ({"gate": GATE | {"mode": "bot"}}, "gate.mode must be one of both, boost_only, suppress_only, off, got 'bot'"),
        ({"rollout": SAMPLING | {"max_batch": 1.5}}, "rollout.max_batch must be an integer >= 1 or null, got 1.5"),
        ({"rollout": SAMPLING | {"max_batch": True}}, "rollout.max_batch must be an integer >= 1 or null, got True"),
        ({"rollout": SAMPLING | {"max_new_tokens": [1]}}, "rollout.max_new_tokens must be an integer >= 1, got [1]"),
    ],
)
def test_wrong_types(config: Mapping[str, Any], expected: str) -> None:
    assert message(config) == expected


@pytest.mark.parametrize(
    "config",
    [
        {"gate": GATE | {"tau": 1}},  # an integer is a number
        {"rollout": SAMPLING | {"max_batch": None}},
        {"answer": {"_target_": "oar_lightning.answers.span.AnswerFormat", "phrases": ["####"]}},
        {"optimizer": {"_target_": "torch.optim.AdamW", "_partial_": True, "lr": 1e-3, "betas": [0.9, 0.99]}},
        {"a": {"b": [{"c": GATE}, 3]}, "free": {"anything": object()}},
        {
            "weights": {
                "_target_": "oar_lightning.answers.reward.Rewards",
                "terms": {"a": {"_target_": "oar_lightning.answers.reward.Format"}},
            }
        },
        {"any": {"_target_": "builtins.dict", "whatever": 1}},
    ],
)
def test_good_configs_pass(config: Mapping[str, Any]) -> None:
    check_targets(config)


def test_nested_targets_are_checked_where_they_stand() -> None:
    inner = {"_target_": "oar_lightning.answers.verifier.VerifierConfig", "timeout": 1}
    accuracy = {"_target_": "oar_lightning.answers.reward.Accuracy", "verifier": inner}
    config = {"reward": {"_target_": "oar_lightning.answers.reward.Rewards", "terms": {"accuracy": accuracy}}}
    assert message(config).startswith("unknown key reward.terms.accuracy.verifier.timeout; did you mean ")
    assert message({"list": [{}, {"gate": GATE | {"tua": 1}}]}).startswith("unknown key list[1].gate.tua")


def test_plain_mappings_are_checked_too() -> None:
    terms = {"a": {"_target_": "oar_lightning.answers.reward.Format"}}
    rewards = {"_target_": "oar_lightning.answers.reward.Rewards", "terms": terms, "weights": {"a": "much"}}
    assert message({"reward": rewards}) == "reward.weights.a must be a number, got 'much'"


def test_values_of_a_mapping_are_checked_where_it_is_of_one_kind() -> None:
    check_value({"a": 1.0}, Mapping[str, float] | None, "k")
    check_value(None, Mapping[str, float] | None, "k")
    with pytest.raises(ConfigError, match=r"k\.a must be a number, got 'x'"):
        check_value({"a": "x"}, Mapping[str, float] | None, "k")
    check_value({"a": "x"}, Mapping[str, float] | Mapping[str, str], "k")


def test_missing_keys() -> None:
    chain = {"_target_": "oar_lightning.data.chain.task.ChainProblems", "split": "train"}
    assert (
        message({"data": {"train": chain}})
        == "data.train: oar_lightning.data.chain.task.ChainProblems needs data.train.task; set it"
    )
    check_targets({"data": {"train": chain | {"_partial_": True}}})


@pytest.mark.parametrize(
    ("target", "reason"),
    [
        ("oar_lightning.credit.scorers.OarX", "has no attribute 'OarX'"),
        ("oar_lightning.scorings.OarG", "has no attribute 'scorings'"),
        ("no_such_package.Thing", "no such module; is the folder of your file on PYTHONPATH?"),
        ("Thing", "no such module"),
        ("oar_lightning.credit.scorers", "is a module; name a class or a function"),
        (None, "is no dotted path of a class or a function"),
        (7, "is no dotted path of a class or a function"),
        ("oar_lightning.answers.span.AnswerFormat.boxedd", "has no attribute 'boxedd'"),
    ],
)
def test_bad_targets(target: object, reason: str) -> None:
    text = message({"scorer": {"_target_": target}})
    assert text.startswith(f"scorer._target_={target}")
    assert reason in text


@pytest.fixture
def plug_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "my_scorers.py").write_text(
        textwrap.dedent(
            """
            from __future__ import annotations
            from typing import TYPE_CHECKING, Any

            if TYPE_CHECKING:
                from nowhere import Thing

            class Digits:
                def __init__(self, bonus: float, only_last: bool = False) -> None: ...

            class Unannotated:
                def __init__(self, bonus, *, scale=1): ...

            class Unresolvable:
                def __init__(self, thing: Thing = None, bonus: float = 1.0) -> None: ...

            def first(model: Any, rollouts: Any, bonus: float = 1.0): ...
            """
        )
    )
    (tmp_path / "my_base.py").write_text(
        textwrap.dedent(
            """
            from __future__ import annotations
            from dataclasses import dataclass
            from typing import Literal as OneOf

            @dataclass
            class Base:
                mode: OneOf["a", "b"] = "a"
            """
        )
    )
    (tmp_path / "my_dataclasses.py").write_text(
        textwrap.dedent(
            """
            from __future__ import annotations
            from dataclasses import dataclass
            from my_base import Base

            @dataclass
            class More(Base):
                bonus: float = 1.0

            class Own(Base):
                def __init__(self, size: int) -> None: ...
            """
        )
    )
    (tmp_path / "my_broken.py").write_text("import absent_library\nclass Scorer: ...\n")
    (tmp_path / "absent.py").write_text("import absen\nclass Scorer: ...\n")
    monkeypatch.syspath_prepend(str(tmp_path))


@pytest.mark.usefixtures("plug_in")
def test_plug_ins_are_checked_like_the_packages_own() -> None:
    target = "my_scorers.Digits"
    check_targets({"scorer": {"_target_": target, "bonus": 2}})
    assert message({"scorer": {"_target_": target}}) == f"scorer: {target} needs scorer.bonus; set it"
    assert "did you mean scorer.bonus?" in message({"scorer": {"_target_": target, "bonuss": 2}})
    assert message({"scorer": {"_target_": target, "bonus": "x"}}) == "scorer.bonus must be a number, got 'x'"
    check_targets({"scorer": {"_target_": "my_scorers.Unannotated", "bonus": "x", "scale": None}})
    assert "scorer.scal" in message({"scorer": {"_target_": "my_scorers.Unannotated", "bonus": 1, "scal": None}})
    check_targets({"scorer": {"_target_": "my_scorers.Unresolvable", "bonus": 1}})
    check_targets({"scorer": {"_target_": "my_scorers.first", "_partial_": True, "bonus": 1}})
    assert message({"scorer": {"_target_": "my_scorers.first", "_partial_": True, "bonus": "x"}}).startswith(
        "scorer.bonus must"
    )


@pytest.mark.usefixtures("plug_in")
def test_the_fields_of_a_dataclass_are_checked_wherever_they_come_from() -> None:
    more = {"_target_": "my_dataclasses.More"}
    check_targets({"scorer": more | {"mode": "b", "bonus": 2}})
    assert message({"scorer": more | {"mode": "c"}}) == "scorer.mode must be one of a, b, got 'c'"
    assert message({"scorer": more | {"bonus": "x"}}) == "scorer.bonus must be a number, got 'x'"
    assert message({"scorer": {"_target_": "my_dataclasses.Own", "size": "x"}}) == "scorer.size must be an integer, got 'x'"


@pytest.mark.usefixtures("plug_in")
@pytest.mark.parametrize(("module", "absent"), [("my_broken", "absent_library"), ("absent", "absen")])
def test_a_plug_in_that_misses_a_library_says_which(module: str, absent: str) -> None:
    text = message({"scorer": {"_target_": f"{module}.Scorer"}})
    assert text == f"scorer._target_={module}.Scorer: its module needs {absent}, which is not installed"


@pytest.mark.parametrize(
    ("content", "said"),
    [("class Scorer(:", "SyntaxError: invalid syntax (my_faulty.py, line 1)"), ("x = y", "NameError: name 'y' is not defined")],
)
def test_a_plug_in_that_cannot_be_imported_says_why(
    content: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "my_faulty.py").write_text(content)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr("sys.dont_write_bytecode", True)
    text = message({"scorer": {"_target_": "my_faulty.Scorer"}})
    assert text == f"scorer._target_=my_faulty.Scorer: its module cannot be imported ({said}); correct it"


@pytest.mark.parametrize(
    ("hint", "words"),
    [
        (int, "an integer"),
        (float | None, "a number or null"),
        (str | list[str], "a text or a list of texts"),
        (Literal["a", "b"], "one of a, b"),
        (bool, "true or false"),
        (TokenBudget | int | Literal["auto"] | None, "an integer, auto or null"),  # a config cannot hold an object
        (TokenBudget | None, "a group of settings or null"),
    ],
)
def test_types_in_words(hint: Any, words: str) -> None:
    with pytest.raises(ConfigError, match=rf"^key must be {re.escape(words)}, got b'x'$"):
        check_value(b"x", hint, "key")
