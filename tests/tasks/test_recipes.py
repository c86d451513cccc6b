"""The recipes of the paper's setting: what they say, and every stage of them with a tiny policy of the same architecture."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from hydra import compose
from hydra.utils import instantiate
from support import fake_vllm
from support.composing import Prepare
from transformers import AutoModelForCausalLM, AutoTokenizer, Qwen2Config, Qwen2ForCausalLM

from oar_lightning.common.paths import conf_dir
from oar_lightning.credit.scorers import OarG
from oar_lightning.credit.scorers.probes import ProbeSchedule
from oar_lightning.data.mixture import Mixture
from oar_lightning.policy.pretrained import PretrainedPolicy
from oar_lightning.rollout import VllmConfig

TEMPLATE = "{% for m in messages %}{{ m['content'] }}\n{% endfor %}"
RECIPES = {"paper_qwen2_5_7b": False, "paper_qwen2_5_1_5b": True}
"""Recipe -> whether its policy's embeddings are tied."""

SETS: dict[str, tuple[str, dict[str, Any]]] = {
    "train.sources.gsm8k": ("train", {"question": "1+1?", "answer": "#### 2"}),
    "train.sources.math": ("train", {"problem": "2+1?", "solution": "\\boxed{3}", "level": "Level 1", "type": "Algebra"}),
    "evaluation.aime24": ("train", {"id": 1, "problem": "a?", "solution": "s", "answer": "4"}),
    "evaluation.aime25": ("test", {"id": "1", "problem": "b?", "answer": "5"}),
    "evaluation.amc23": ("test", {"id": 1, "question": "c?", "answer": 6.0}),
    "evaluation.gsm8k": ("test", {"question": "d?", "answer": "#### 7"}),
    "evaluation.math500": ("test", {"problem": "e?", "answer": "8", "solution": "s", "level": 1, "unique_id": "u"}),
}


def local_sets(folder: Path) -> list[str]:
    """Overrides that read each set of a recipe from a file in its publisher's layout."""
    overrides = []
    for number, (key, (split, row)) in enumerate(SETS.items()):
        path = folder / f"set{number}"
        path.mkdir()
        question = "question" if "question" in row else "problem"
        rows = [row | {question: f"{row[question]} {i}"} for i in range(4)]
        (path / f"{split}.jsonl").write_text("".join(json.dumps(r) + "\n" for r in rows))
        overrides.append(f"data.{key}.path={path}")
    return overrides


@pytest.fixture
def tiny(tmp_path: Path) -> dict[bool, Path]:
    """Random Qwen2 policies with the built-in policy's tokenizer and a chat template."""
    tokenizer = AutoTokenizer.from_pretrained(PretrainedPolicy("chain").location())
    tokenizer.chat_template = TEMPLATE
    folders = {}
    for tied in (False, True):
        torch.manual_seed(0)
        config = Qwen2Config(
            vocab_size=len(tokenizer),
            hidden_size=32,
            intermediate_size=64,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            tie_word_embeddings=tied,
            eos_token_id=tokenizer.eos_token_id,
            bos_token_id=None,
        )
        folders[tied] = tmp_path / f"tiny_{tied}"
        Qwen2ForCausalLM(config).save_pretrained(folders[tied])
        tokenizer.save_pretrained(folders[tied])
    return folders


@pytest.mark.parametrize("name", RECIPES)
def test_a_recipe_says_the_papers_setting(name: str, prepared: Prepare, monkeypatch: pytest.MonkeyPatch) -> None:
    cfg = compose("config", [f"+experiment={name}"])
    assert isinstance(instantiate(cfg.data.train), Mixture)
    assert sorted(cfg.data.train.sources) == ["gsm8k", "math"]
    assert sorted(cfg.data.evaluation) == ["aime24", "aime25", "amc23", "gsm8k", "math500"]
    assert (cfg.gate.tau, cfg.gate.beta, cfg.gate.mode, cfg.loss.reduction, cfg.loss.kl_coef) == (0.4, 2.0, "both", "grpo", 0.0)
    scorer = instantiate(cfg.scorer)
    assert isinstance(scorer, OarG)
    assert scorer.probe == ProbeSchedule("answer_mean", "last", 50)
    assert (scorer.noise_std, scorer.num_draws) == (1e-3, 1)
    assert cfg.rollout.temperature == cfg.rollout.top_p == 1.0
    size = {"paper_qwen2_5_7b": "7B", "paper_qwen2_5_1_5b": "1.5B"}[name]
    assert cfg.policy.name == f"Qwen/Qwen2.5-{size}"
    text = (conf_dir() / "experiment" / f"{name}.yaml").read_text()
    assert text.splitlines()[1] == f"# python -m oar_lightning +experiment={name}"


@pytest.mark.parametrize("name", [pytest.param(name, marks=[pytest.mark.slow] * tied) for name, tied in RECIPES.items()])
def test_a_recipe_runs(
    name: str, prepared: Prepare, tiny: dict[bool, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two steps, evaluation before and after, export. Only the machine, the sizes and the places of things are changed."""
    (tmp_path / "recipe_reward.py").write_text(
        "def parity(problems, completions):\n    return [len(c.text) % 2 for c in completions]\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    policy = tiny[RECIPES[name]]
    work = prepared(
        f"+experiment={name}",
        f"policy.name={policy}",
        "engine=auto",
        "trainer=cpu",
        "trainer.precision=32-true",
        "trainer.devices=1",
        "trainer.max_steps=2",
        "rollout.max_new_tokens=12",
        "update.problems=2",
        "update.group_size=4",
        "update.microbatches=4",
        "update.token_budget=64",
        "data.max_prompt_tokens=200",
        "evaluation.samples=2",
        "optimizer.lr=1e-3",
        "schedule.warmup_steps=0",
        # random weights earn nothing by their answers
        "+reward.terms.parity._target_=oar_lightning.answers.reward.FunctionReward",
        "+reward.terms.parity.path=recipe_reward.parity",
        "+reward.weights.parity=1.0",
        "logger=none",
        "num_threads=1",
        f"export_to={tmp_path / 'export'}",
        *local_sets(tmp_path),
    )
    work()
    before, after = (AutoModelForCausalLM.from_pretrained(folder) for folder in (policy, tmp_path / "export"))
    assert after.config.tie_word_embeddings == RECIPES[name]
    moved = [(a - b).abs().max() for a, b in zip(before.parameters(), after.parameters(), strict=True)]
    assert all(0 < change < 0.01 for change in moved), moved


def test_recipes_sample_with_vllm_on_every_rank(prepared: Prepare) -> None:
    one, eight = (compose("config", [f"+experiment={name}"]) for name in sorted(RECIPES))
    assert [instantiate(cfg.engine) for cfg in (one, eight)] == [
        VllmConfig(),
        VllmConfig(gpu_memory_utilization=0.4, sleep=True),
    ]
    assert one.trainer.accelerator == eight.trainer.accelerator == "gpu"
    assert (one.trainer.devices, one.trainer.get("strategy", "auto")) == (1, "auto")
    assert (eight.trainer.devices, eight.trainer.strategy.stage) == (8, 3)


def test_a_recipes_vllm_is_asked_for_before_long_work(
    prepared: Prepare, tiny: dict[bool, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_vllm.install(monkeypatch)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ValueError, match=r"engine=vllm runs on CUDA and torch finds no GPU here; use engine=auto"):
        prepared("+experiment=paper_qwen2_5_7b", f"policy.name={tiny[False]}", *local_sets(tmp_path))
