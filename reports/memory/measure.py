"""Peak memory of scoring and of an update with 8,000-token completions and a vocabulary of 152,064.

    python reports/memory/measure.py

runs each phase in a process of its own and writes results.json and the tables of README.md beside this file.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

os.environ.setdefault("TRANSFORMERS_SDPA_FORCE_GQA", "1")  # as `python -m oar_lightning` sets them
os.environ.setdefault("GOMP_SPINCOUNT", "20000")

import torch

from oar_lightning.answers.reward import Accuracy, Rewards
from oar_lightning.benchmark import RandomShape, RandomWorkload
from oar_lightning.benchmark.held_memory import process_memory
from oar_lightning.common.markdown import fill, markdown
from oar_lightning.common.randomness import generator
from oar_lightning.credit.gates import BilevelGate
from oar_lightning.credit.scorers import Entropy, OarG, OarP, OarPApproximate, Scorer, TotalEffectFast, Uniform
from oar_lightning.objective.advantage import AdvantageConfig
from oar_lightning.objective.loss import LossConfig
from oar_lightning.rollout import Generation
from oar_lightning.tasks.benchmark import machine
from oar_lightning.training.experience import Experience
from oar_lightning.training.method import Method
from oar_lightning.training.module import PolicyOptimization
from oar_lightning.training.schedule import Schedule
from oar_lightning.training.slots import Slot, UpdatePlan
from oar_lightning.types import Rollouts

HERE = Path(__file__).parent
BAR = 8e9
WHOLE = "What code that works on whole tensors would hold at least:"
FIRST, LAST = 32, 224
SCORERS: dict[str, Scorer] = {
    "scoring, OAR-G": OarG(),
    "scoring, entropy": Entropy(),
    "scoring, total effect, fast": TotalEffectFast(),
    "scoring, OAR-P approximate (attribution, budget 4.8)": OarPApproximate(),
    f"scoring, OAR-P exact, first {FIRST} and last {LAST} tokens": OarP(),
}
PHASES = ["nothing", "update", *SCORERS]


def workload(length: int) -> RandomWorkload:
    shape = RandomShape(
        hidden_size=64,
        intermediate_size=128,
        layers=2,
        heads=4,
        kv_heads=2,
        vocab_size=152064,
        prompt=64,
        completion=length,
        prompts=1,
        group_size=2,
    )
    return RandomWorkload(shape, torch.device("cpu"))


def random_rollouts(work: RandomWorkload) -> Rollouts:
    """One group of random tokens, one completion rewarded. Nothing is sampled, so no states are left either: every phase
    runs the policy itself."""
    shape = work.shape
    size = (shape.group_size, shape.prompt + shape.completion)
    ids = torch.randint(1, shape.vocab_size, size, generator=generator("memory"))
    ids[:, : shape.prompt] = ids[0, : shape.prompt]
    everywhere = torch.ones_like(ids, dtype=torch.bool)
    response = everywhere.clone()
    response[:, : shape.prompt] = False
    return work.judge(Generation(ids, everywhere, response, torch.ones(len(ids), dtype=torch.bool)), 0)


def ends_only(rollouts: Rollouts) -> Rollouts:
    """The first tokens have the longest texts to run again, the last ones the most texts in a batch; those between are left
    out, for time."""
    rank = rollouts.reasoning_mask.long().cumsum(1)
    kept = (rank <= FIRST) | (rank > rank.amax(1, keepdim=True) - LAST)
    return dataclasses.replace(rollouts, reasoning_mask=rollouts.reasoning_mask & kept)


def run_phase(name: str, length: int) -> dict[str, Any]:
    """What this process, which is to do nothing else, needed."""
    work = workload(length)
    rollouts = random_rollouts(work)
    scorer = SCORERS.get(name, Uniform())
    plan = UpdatePlan(problems=1, group_size=2, microbatches=1)
    method = Method(scorer, BilevelGate(), AdvantageConfig(), LossConfig(), plan, work.sampling)
    stage: Any = SimpleNamespace(rewards=Rewards({"accuracy": Accuracy()}))
    module = PolicyOptimization(work.policy, stage, method, torch.optim.AdamW, Schedule(), 0).train()
    advantages = module.collector.advantages(rollouts.reward_terms, rollouts.group_size)
    assert advantages.ne(0).all()
    rollouts = dataclasses.replace(rollouts, advantages=advantages)
    before, started = process_memory("VmRSS"), time.perf_counter()
    if name == "update":
        module.experience = Experience(rollouts, module.collector.assign_credit(rollouts))
        optimizer = torch.optim.AdamW(module.parameters(), lr=1e-4)
        loss = module.training_step(Slot((), 0, 0, 0, 0), 0)
        assert loss is not None
        loss.backward()
        optimizer.step()
    elif name in SCORERS:
        rollouts = ends_only(rollouts) if isinstance(scorer, OarP) and not isinstance(scorer, OarPApproximate) else rollouts
        importance = module.collector.assign_credit(rollouts).importance
        assert importance.isfinite().all()
        assert importance[rollouts.reasoning_mask].gt(0).float().mean() > 0.5
    seconds = time.perf_counter() - started
    cost = scorer.metrics.get("forward_equivalents")
    found = {"before": before, "peak": process_memory("VmHWM"), "seconds": seconds, "forward_equivalents": cost}
    return found | {"machine": machine(work)}


def whole_tensors(length: int) -> list[list[str]]:
    """What code without chunks would hold at least, in GB."""
    shape = workload(length).shape
    total = length + shape.prompt
    logits = 4 * 2 * length * shape.vocab_size / 1e9
    maps = 4 * 2 * shape.heads * total**2 / 1e9
    return [
        ["tensor", "GB", "who would hold it"],
        ["float32 logits [2, completion, V]", f"{logits:.1f}", "one forward pass (scoring reads 8 rows of it)"],
        ["logits, log-probabilities, gradient", f"{3 * logits:.1f}", "an update"],
        ["logits, log-probabilities, probabilities", f"{3 * logits:.1f}", "entropy"],
        ["attention weights of one layer [2, heads, S, S]", f"{maps:.1f}", "approximate OAR-P, a few of them at once"],
        [
            "keys and values of all counterfactuals, one layer",
            f"{4 * 2 * length * total * 2 * shape.kv_heads * shape.hidden_size / shape.heads / 1e9:.0f}",
            "exact OAR-P in one batch",
        ],
    ]


def tables(results: dict[str, Any]) -> str:
    rows = [["phase", "peak GB", "of that before the phase GB", "seconds", "forward-equivalents", "<= 8 GB"]]
    for name in PHASES:
        r = results[name]
        cost = "" if not r["forward_equivalents"] else f"{r['forward_equivalents']:.1f}"
        peak, before = (f"{r[k] / 1e9:.2f}" for k in ("peak", "before"))
        rows.append([name, peak, before, f"{r['seconds']:.0f}", cost, "yes" if r["peak"] <= BAR else "**no**"])
    return "\n\n".join([results["nothing"]["machine"] + ".", markdown(rows), WHOLE, markdown(whole_tensors(results["length"]))])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--length", type=int, default=8000, help="tokens of a completion")
    parser.add_argument("--phases", nargs="*", default=PHASES, choices=PHASES, help="what to measure anew")
    parser.add_argument("--here", action="store_true", help="the first of the phases in this process; prints JSON")
    options = parser.parse_args()
    if options.here:
        sys.stdout.write(json.dumps(run_phase(options.phases[0], options.length)))
        return
    stored = HERE / "results.json"
    results = json.loads(stored.read_text(encoding="utf-8")) if stored.exists() else {}
    results["length"] = options.length
    for name in options.phases:
        command = [sys.executable, __file__, "--here", "--length", str(options.length), "--phases", name]
        done = subprocess.run(command, stdout=subprocess.PIPE, check=True, text=True)
        results[name] = json.loads(done.stdout)
        sys.stderr.write(f"{name}: {results[name]['peak'] / 1e9:.2f} GB, {results[name]['seconds']:.1f} s\n")
        stored.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    if all(name in results for name in PHASES):
        fill(HERE / "README.md", tables(results))


if __name__ == "__main__":
    main()
