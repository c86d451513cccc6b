"""Seconds of a training step of GRPO, OAR-G and OAR-P, measured side by side.

    python reports/main_job/step_cost.py [repeats] [overrides ...]

One process, the built-in policy and the default batch (32 problems x 8 completions). The methods take turns step by step (A B
C A B C ...), each on the same problems and from the same weights, so that a busy machine slows all of them alike; medians and
the median of the paired ratios are printed. The first round warms up and is not counted.
"""

from __future__ import annotations

import os

os.environ.setdefault("GOMP_SPINCOUNT", "20000")

import copy
import functools
import statistics
import sys
import time

import torch
from hydra import compose, initialize_config_dir

from oar_lightning.build import build_settings
from oar_lightning.data.prompts import PlainPrompt
from oar_lightning.data.stream import ProblemStream, Slot
from oar_lightning.module import Method, PolicyOptimization
from oar_lightning.paths import conf_dir
from oar_lightning.policy import Policy
from oar_lightning.rollout import RolloutStage, choose_engine
from oar_lightning.token_text import TokenBytes

METHODS = ("grpo", "oar_g", "oar_p")


def build(method: str, policy: Policy, overrides: list[str]) -> PolicyOptimization:
    with initialize_config_dir(str(conf_dir()), version_base="1.3"):
        settings = build_settings(compose("config", [f"+experiment={method}", "logger=none", *overrides]))
    own = Policy(copy.deepcopy(policy.model), policy.tokenizer)
    stage = RolloutStage(
        choose_engine(own.model, own.tokenizer),
        TokenBytes(own.tokenizer),
        PlainPrompt(),
        settings.answer,
        settings.rewards,
        own.tokenizer.pad_token_id,
    )
    parts = (settings.scorer, settings.gate, settings.advantage, settings.loss, settings.update, settings.sampling)
    optimizer = functools.partial(torch.optim.AdamW, lr=0.0)  # weights stay as they are: every step does the same work
    return PolicyOptimization(own, stage, Method(*parts), optimizer, settings.schedule, seed=0).train()


def step(module: PolicyOptimization, optimizer: torch.optim.Optimizer, slots: list[Slot]) -> tuple[float, float]:
    """Seconds of one step in all and of its scoring."""
    start = time.perf_counter()
    module.experience = module.collect(slots[0].problems, slots[0].rollout)
    for slot in slots:
        loss = module.training_step(slot, 0)
        assert loss is not None, "a batch of the default size has groups with a signal"
        loss.backward()
    torch.nn.utils.clip_grad_norm_(module.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()
    return time.perf_counter() - start, module._pending["time/score_s"]


def main(repeats: str = "10", *more: str) -> None:
    overrides = list(more)
    with initialize_config_dir(str(conf_dir()), version_base="1.3"):
        settings = build_settings(compose("config", ["+experiment=grpo", "logger=none", *overrides]))
    policy = settings.policy.load()  # type: ignore[union-attr]
    modules = {method: build(method, policy, overrides) for method in METHODS}
    optimizers = {method: module.make_optimizer(module.parameters()) for method, module in modules.items()}
    stream = ProblemStream(settings.train, 0)
    seconds: dict[str, list[tuple[float, float]]] = {method: [] for method in METHODS}
    for number in range(int(repeats) + 1):
        problems = tuple(stream.take(settings.update.problems))
        slots = [Slot(problems, number, 0, 0, i) for i in range(settings.update.microbatches)]
        for method in METHODS:
            measured = step(modules[method], optimizers[method], slots)
            if number:
                seconds[method].append(measured)
    sys.stdout.write("| method | step s (median) | scoring s | step / grpo (median of pairs) |\n|---|---|---|---|\n")
    for method in METHODS:
        total, scoring = (statistics.median(column) for column in zip(*seconds[method], strict=True))
        ratio = statistics.median(a[0] / b[0] for a, b in zip(seconds[method], seconds["grpo"], strict=True))
        sys.stdout.write(f"| {method} | {total:.2f} | {scoring:.2f} | {ratio:.2f} |\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
