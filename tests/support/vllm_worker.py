"""One rank of a small training job that samples with vLLM, the true one or its stand-in, started by tests."""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path
from typing import Any

import lightning as L
import pytest
import torch
from support import fake_vllm, true_vllm
from support.fixtures import TASK, fit, make_module, tiny_policy
from support.rank_worker import LR, PLAN, Watch, configured

from oar_lightning.credit.scorers import OarG
from oar_lightning.data.chain.task import ChainProblems
from oar_lightning.data.stream import eval_set_problems
from oar_lightning.evaluation.evaluate import EvaluationConfig
from oar_lightning.rollout import VllmConfig, VllmEngine
from oar_lightning.tracking.tracker import Tracker
from oar_lightning.training.callbacks import EvaluationCallback

STEPS = 4


def train(folder: Path, strategy: Any = "auto", devices: int = 1, true: bool = False) -> dict[str, Any]:
    """A few steps of OAR-G, and an evaluation before and after. It has a single problem, so that a second rank has none."""
    with pytest.MonkeyPatch.context() as patch:
        if not true:
            patch.setattr(VllmConfig, "check", lambda self, sampling: None)
        made = (true_vllm if true else fake_vllm).install(patch).made
        module = make_module(tiny_policy(head_size=32 if true else 8), scorer=OarG(), update=PLAN, lr=LR)
        engine = VllmEngine(module.tokenizer, VllmConfig(sleep=not true, enforce_eager=True))
        module.collector.stage = dataclasses.replace(module.collector.stage, engine=engine)
        eval_sets = {"one": eval_set_problems(ChainProblems(TASK, seed=9, split="held_out"), 1, "one")}
        config = EvaluationConfig(samples=2, heatmap=False)
        evaluation = EvaluationCallback(
            eval_sets, module.collector.stage, module.method.sampling, config, Tracker(folder, None)
        )
        watch = Watch()
        rows = fit(module, STEPS, [evaluation, watch], strategy=strategy, devices=devices).rows
        (llm,) = made
        return {
            "rows": rows,
            "weights": watch.weights,
            "completions": watch.completions,
            "history": evaluation.history,
            "replicas": None if true else llm.replicas,
            "events": llm.events,
        }


if __name__ == "__main__":
    torch.set_num_threads(1)
    place, rank, ranks, trainer, *kind = sys.argv[1:]
    L.seed_everything(0, verbose=False)
    found = train(Path(place) / f"run{rank}", configured(trainer), int(ranks), kind == ["true"])
    torch.save(found, Path(place) / f"rank{rank}.pt")
