"""A run of oar_lightning, one step a turn: its module under `Trainer.fit` with a callback that waits where a step begins."""

from __future__ import annotations

import json
import logging
import os
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from oar_lightning.common.allocator import keep_freed_memory
from oar_lightning.wiring.device import seed_everything

os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

import lightning as L
import torch
import transformers
from hydra import compose, initialize_config_dir
from hydra.utils import instantiate
from lightning.pytorch.loggers.logger import Logger
from omegaconf import DictConfig
from transformers import AutoModelForCausalLM
from turns import Turns

import oar_lightning
from oar_lightning.answers.reward import Accuracy, Rewards
from oar_lightning.benchmark import RandomShape, RandomWorkload
from oar_lightning.common.paths import conf_dir
from oar_lightning.policy.pretrained import Policy, PretrainedPolicy
from oar_lightning.rollout import CachedEngine, SamplingConfig, build_stage
from oar_lightning.training.datamodule import MathDataModule
from oar_lightning.training.module import PolicyOptimization
from oar_lightning.training.settings import Settings
from oar_lightning.training.slots import Slot
from oar_lightning.types import MathProblem, Rollouts
from oar_lightning.wiring.settings import build_settings


def compose_config(overrides: Sequence[str]) -> DictConfig:
    with initialize_config_dir(str(conf_dir()), version_base="1.3"):
        return compose("config", overrides=list(overrides))


@dataclass(frozen=True)
class Listed:
    """The problems of the file that both sides read, in its order."""

    problems: tuple[MathProblem, ...]

    def __iter__(self) -> Iterator[MathProblem]:
        return iter(self.problems)

    def shuffled(self, seed: int, epoch: int, start: int = 0) -> Iterator[MathProblem]:
        return iter(self.problems[start:])


class RandomStage:
    """In place of `RolloutStage` where prompts and completions are random numbers: nothing to read, half is rewarded."""

    def __init__(self, workload: RandomWorkload) -> None:
        self.workload = workload
        self.engine = CachedEngine(workload.policy.tokenizer)
        self.rewards = Rewards({"accuracy": Accuracy()})  # for the weight of the one reward column

    def __call__(
        self,
        model: Any,
        problems: Sequence[MathProblem],
        samples: int,
        sampling: SamplingConfig,
        seeds: Sequence[int],
        step: int = 0,
    ) -> Rollouts:
        started = time.perf_counter()
        generation = self.engine(model, [p.question for p in problems], samples, sampling, seeds)
        generated = time.perf_counter()
        rollouts = self.workload.judge(generation, step)
        rollouts.stats["time/generate_s"] = generated - started
        rollouts.stats["time/reward_s"] = time.perf_counter() - generated
        return rollouts


class LastMetrics(Logger):
    """Keeps the last step's metrics in memory; the only logger."""

    name = version = "memory"

    def __init__(self) -> None:
        self.last: dict[str, float] = {}

    def log_hyperparams(self, params: Any, *args: Any, **kwargs: Any) -> None:
        pass

    def log_metrics(self, metrics: dict[str, float], step: int | None = None) -> None:
        self.last |= metrics


class TakesTurns(L.Callback):
    """Waits before a batch of rollouts' first slot; callbacks come before the module, so all of its work is counted."""

    def __init__(self, turns: Turns, logger: LastMetrics) -> None:
        self.turns = turns
        self.logger = logger

    def on_train_batch_start(self, trainer: L.Trainer, pl_module: L.LightningModule, batch: Slot, batch_idx: int) -> None:
        if batch.first:
            self.turns.step_begins(self.facts)

    def facts(self) -> dict[str, Any]:
        metrics = self.logger.last
        names = {"generate": "generate", "reward": "reward", "score": "credit", "update": "update"}
        return {
            "parts": {shown: metrics[f"time/{name}_s"] for name, shown in names.items()},
            "mean_length": metrics["completions/mean_length"],
            "reward": metrics["reward"],
            "zero_std": metrics["frac_reward_zero_std"],
        }


def build_module(job: dict[str, Any], cfg: DictConfig, settings: Settings) -> PolicyOptimization:
    """What `build_run` makes of the config; with random prompts, their own stage."""
    stage: Any
    if job["judge"] == "alternating":
        workload = RandomWorkload(RandomShape(**job["shape"]), torch.device("cpu"))
        model = AutoModelForCausalLM.from_pretrained(job["weights"], dtype=torch.float32).eval()
        policy, stage = Policy(model, workload.policy.tokenizer), RandomStage(workload)
    else:
        policy = PretrainedPolicy(job["weights"]).load()
        prompt = instantiate(cfg.data.prompt, template="{question}", tokenizer=policy.tokenizer)  # the file's are rendered
        stage = build_stage(policy, prompt, settings.answer, settings.rewards)
    optimizer = instantiate(cfg.optimizer)
    return PolicyOptimization(policy, stage, settings.method, optimizer, settings.schedule, int(cfg.seed)).train()


def main(job_file: str, experiment: str) -> None:
    job = json.loads(Path(job_file).read_text(encoding="utf-8"))
    keep_freed_memory()
    turns = Turns()
    logging.getLogger("lightning.pytorch").setLevel(logging.WARNING)
    steps = job["steps"] + 1  # one more than there are turns: each step ends where the next begins
    cfg = compose_config([f"+experiment={experiment}", *job["overrides"], f"trainer.max_steps={steps}"])
    settings = build_settings(cfg)
    seed_everything(int(cfg.seed))
    module = build_module(job, cfg, settings)
    rows = [json.loads(line) for line in Path(job["prompts"]).read_text(encoding="utf-8").splitlines()]
    problems = Listed(tuple(MathProblem(question=row["prompt"], answer=row["answer"]) for row in rows))
    logger = LastMetrics()
    trainer: L.Trainer = instantiate(
        cfg.trainer,
        logger=[logger],
        callbacks=[TakesTurns(turns, logger)],
        accumulate_grad_batches=settings.method.update.microbatches,
        max_epochs=-1,
        use_distributed_sampler=False,
        enable_model_summary=False,
        enable_progress_bar=False,
        enable_checkpointing=False,
        default_root_dir=job["folder"],
    )
    turns.ready(
        threads=torch.get_num_threads(),
        torch=torch.__version__,
        transformers=transformers.__version__,
        lightning=L.__version__,
        oar_lightning=oar_lightning.__version__,
        parameters=module.model.num_parameters(),
        microbatches=settings.method.update.microbatches,
    )
    trainer.fit(module, MathDataModule(problems, int(cfg.seed), steps, settings.method.update))


if __name__ == "__main__":
    main(*sys.argv[1:])
