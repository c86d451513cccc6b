"""What `task=plan` expects of a step's phases against what they take, on the built-in benchmark shapes.

    python reports/memory_plan/measure.py

runs each phase in a process of its own and writes results.json and the table of README.md beside this file.
"""

from __future__ import annotations

import argparse
import dataclasses
import gc
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

os.environ.setdefault("TRANSFORMERS_SDPA_FORCE_GQA", "1")  # as `python -m oar_lightning` sets them
os.environ.setdefault("GOMP_SPINCOUNT", "20000")

import torch
from hydra import compose, initialize_config_dir
from hydra.utils import instantiate
from transformers import GPT2Config, GPT2LMHeadModel

from oar_lightning.answers.reward import Accuracy, Rewards
from oar_lightning.benchmark import RandomShape, RandomWorkload
from oar_lightning.benchmark.held_memory import process_memory
from oar_lightning.common.markdown import fill, markdown
from oar_lightning.common.paths import conf_dir
from oar_lightning.common.randomness import generator
from oar_lightning.credit.gates import BilevelGate
from oar_lightning.credit.scorers import OarG, OarP, OarPApproximate, Scorer, Uniform
from oar_lightning.objective.advantage import AdvantageConfig
from oar_lightning.objective.loss import LossConfig
from oar_lightning.planning.job import Job, plan_job
from oar_lightning.planning.memory import Sharding
from oar_lightning.policy.language_model import base_model
from oar_lightning.policy.pretrained import LoraSpec, Policy, PretrainedPolicy, checkpoint_gradients
from oar_lightning.rollout import Generation, SamplingConfig
from oar_lightning.training.experience import Experience
from oar_lightning.training.method import Method
from oar_lightning.training.module import PolicyOptimization
from oar_lightning.training.schedule import Schedule
from oar_lightning.training.slots import Slot, UpdatePlan
from oar_lightning.types import Rollouts

HERE = Path(__file__).parent
BAR = 0.2
SCORERS: dict[str, Scorer] = {
    "OAR-G": OarG(token_budget=8192),
    "OAR-P exact": OarP(token_budget=8192),
    "OAR-P approximate": OarPApproximate(token_budget=8192),
}
PHASES = ("weights", "generation", "update", "update, checkpointing", *SCORERS)
NOISE = 32e6
"""Smaller peaks are not told from what libraries take beside tensors (a few MB)."""
TUNED_ON = ("wide", "authors")
"""Shapes on which the planning code was corrected."""
LAST = 96
RETURNED = {"MALLOC_MMAP_THRESHOLD_": "65536"}
"""So that freed tensors leave the process at once: the C library keeps others for later, which no plan of tensors can know."""


@dataclass(frozen=True)
class Subject:
    """A policy of random weights and its texts. `gpt2`: learned positions, layer norms, a plain MLP, in place of Qwen2's."""

    shape: RandomShape
    gpt2: bool = False
    lora: LoraSpec | None = None

    @property
    def precision(self) -> str:
        return {"float32": "32-true", "bfloat16": "bf16-true"}[self.shape.dtype]


def preset(name: str) -> Subject:
    with initialize_config_dir(str(conf_dir()), version_base="1.3"):
        return Subject(instantiate(compose("config", ["task=benchmark", f"benchmark={name}"]).benchmark.shape))


PLAIN = RandomShape(256, 1024, 4, 8, 8, 4096, prompt=64, completion=192, prompts=4, group_size=4)
SHAPES: dict[str, Callable[[], Subject]] = {
    "wide": lambda: preset("wide"),
    "authors": lambda: preset("authors"),
    "long": lambda: preset("long"),
    # the built-in policy and task
    "tiny": lambda: Subject(RandomShape(96, 256, 3, 4, 2, 512, prompt=48, completion=80, prompts=32, group_size=8)),
    "MHA, untied": lambda: Subject(replace(PLAIN, tied=False)),
    "large vocabulary": lambda: Subject(
        RandomShape(128, 384, 2, 4, 1, 65536, prompt=16, completion=32, prompts=8, group_size=8, tied=False)
    ),
    "small vocabulary": lambda: Subject(
        RandomShape(128, 512, 4, 4, 2, 256, prompt=48, completion=976, prompts=1, group_size=4)
    ),
    "GPT-2": lambda: Subject(PLAIN, gpt2=True),
    "bf16": lambda: Subject(replace(PLAIN, kv_heads=2, dtype="bfloat16")),
    "LoRA": lambda: Subject(replace(PLAIN, kv_heads=2), lora=LoraSpec(r=8)),
}


@dataclass(frozen=True)
class Case:
    """One phase of one shape, and what of the plan it is held against."""

    shape: str
    phase: str

    @property
    def subject(self) -> Subject:
        return SHAPES[self.shape]()

    @property
    def scorer(self) -> Scorer:
        return SCORERS.get(self.phase, Uniform())


def update_plan(shape: RandomShape) -> UpdatePlan:
    return UpdatePlan(problems=shape.prompts, group_size=shape.group_size, microbatches=2)


def planned(case: Case, folder: Path) -> dict[str, float]:
    """Bytes that the plan expects beyond what the process holds when the phase begins."""
    subject = case.subject
    shape = subject.shape
    job = Job(
        policy=PretrainedPolicy(str(folder), gradient_checkpointing="checkpointing" in case.phase, lora=subject.lora),
        precision=subject.precision,
        sharding=Sharding(),
        update=update_plan(shape),
        sampling=SamplingConfig(max_new_tokens=shape.completion),
        scorer=case.scorer,
        prompt=shape.prompt,
        answer=shape.answer,
        conclusion=shape.conclusion,
    )
    plan = plan_job(job).plan
    found = {(item.name, phase): item.bytes for item in plan.items for phase in item.phases}
    if case.phase == "weights":
        return {"planned": plan.of("optimizer step")}
    if case.phase == "generation":
        return {"planned": found["generation", "rollout"]}
    if case.phase in SCORERS:
        return {"planned": found["scoring", "scoring"]}
    return {"planned": found["update's pass", "update"]}


def random_rollouts(work: RandomWorkload) -> Rollouts:
    """Random tokens, not sampled: no states are left, so that a scorer runs the policy itself."""
    shape = work.shape
    size = (shape.prompts * shape.group_size, shape.prompt + shape.completion)
    ids = torch.randint(1, shape.vocab_size, size, generator=generator("memory"))
    ids[:, : shape.prompt] = ids[:: shape.group_size, : shape.prompt].repeat_interleave(shape.group_size, 0)
    everywhere = torch.ones_like(ids, dtype=torch.bool)
    response = everywhere.clone()
    response[:, : shape.prompt] = False
    return work.judge(Generation(ids, everywhere, response, torch.ones(len(ids), dtype=torch.bool)), 0)


def for_time(rollouts: Rollouts, case: Case) -> Rollouts:
    """For exact OAR-P of long completions: two of them, where the prefixes take most, and their last tokens."""
    total = rollouts.token_ids.shape[1]
    if case.phase != "OAR-P exact" or total <= 256:
        return rollouts
    column = torch.arange(total)
    kept = (column >= total - total // 8 - LAST) & (column < total - total // 8 + 8) | (column >= total - LAST)
    return replace(rollouts, reasoning_mask=rollouts.reasoning_mask & kept)


def workload(subject: Subject) -> RandomWorkload:
    shape = subject.shape
    work = RandomWorkload(shape, torch.device("cpu"))
    if subject.gpt2:
        config = GPT2Config(
            vocab_size=shape.vocab_size,
            n_embd=shape.hidden_size,
            n_inner=shape.intermediate_size,
            n_layer=shape.layers,
            n_head=shape.heads,
            n_positions=shape.prompt + shape.completion,
            **dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), 0.0),
            **dict.fromkeys(("bos_token_id", "eos_token_id", "pad_token_id"), None),
        )
        work.policy = Policy(GPT2LMHeadModel(config).eval(), work.policy.tokenizer)
    if subject.lora is not None:
        work.policy = Policy(subject.lora.apply(work.policy.model).eval(), work.policy.tokenizer)
    return work


def phase_work(case: Case, subject: Subject) -> Any:
    """The phase, ready to be run."""
    shape, work = subject.shape, workload(subject)
    if "checkpointing" in case.phase:
        checkpoint_gradients(work.policy.model, lora=subject.lora is not None)
    method = Method(case.scorer, BilevelGate(), AdvantageConfig(), LossConfig(), update_plan(shape), work.sampling)
    stage: Any = SimpleNamespace(rewards=Rewards({"accuracy": Accuracy()}))
    module = PolicyOptimization(work.policy, stage, method, torch.optim.AdamW, Schedule(), 0).train()
    if case.phase == "generation":
        return lambda: work.sample(0)
    rollouts = random_rollouts(work)
    advantages = module.collector.advantages(rollouts.reward_terms, rollouts.group_size)
    rollouts = dataclasses.replace(rollouts, advantages=advantages)
    if case.phase in SCORERS:
        part = for_time(rollouts, case)
        return lambda: module.collector.assign_credit(part)
    module.experience = Experience(rollouts, module.collector.assign_credit(rollouts))
    for parameter in trained(work):  # as in a step's second pass
        parameter.grad = torch.full_like(parameter, 0.0)  # zeros would take their memory when they are written to

    def update() -> None:
        loss = module.training_step(Slot((), 0, 0, 0, 1), 1)
        assert loss is not None
        loss.backward()

    return update


def trained(work: RandomWorkload) -> list[torch.nn.Parameter]:
    return [parameter for parameter in work.policy.model.parameters() if parameter.requires_grad]


def weights_work(subject: Subject) -> Any:
    """A policy with gradients and optimizer, at the end of a step."""

    def run() -> Any:
        work = workload(subject)
        optimizer = torch.optim.AdamW(trained(work))
        for parameter in trained(work):
            parameter.grad = torch.ones_like(parameter)
        optimizer.step()
        return work, optimizer

    return run


def small(subject: Subject) -> Subject:
    """Of the same kind, to load what is loaded late."""
    model = replace(subject.shape, hidden_size=32, intermediate_size=64, layers=2, heads=4, kv_heads=2, vocab_size=64)
    return replace(subject, shape=replace(model, prompt=8, completion=32, prompts=2))


def measured(case: Case) -> dict[str, float]:
    """What this process, which is to do nothing else, takes at most beyond what it holds when the phase begins."""
    torch.set_num_threads(1)
    subject = case.subject
    make = weights_work if case.phase == "weights" else lambda s: phase_work(case, s)
    make(small(subject))()
    work = make(subject)
    gc.collect()
    Path("/proc/self/clear_refs").write_text("5")  # resets VmHWM
    before, started = process_memory("VmRSS"), time.perf_counter()
    kept = work()
    seconds = time.perf_counter() - started
    assert kept is None or kept
    return {"measured": process_memory("VmHWM") - before, "seconds": seconds}


def save_config(subject: Subject, folder: Path) -> None:
    """The config.json of a shape's policy: all that a plan reads."""
    base_model(workload(replace(subject, shape=replace(subject.shape, prompts=1))).policy.model).config.save_pretrained(folder)


def tables(results: dict[str, dict[str, float]]) -> str:
    rows = [["shape", "phase", "planned MB", "measured MB", "planned / measured", f"within {BAR:.0%}", "role"]]
    for key, r in results.items():
        shape, phase = key.split("/")
        ratio = r["planned"] / r["measured"]
        verdict = "too small" if r["measured"] < NOISE else "yes" if abs(ratio - 1) <= BAR else "**no**"
        role = "tuned on" if shape in TUNED_ON else "check"
        rows.append([shape, phase, f"{r['planned'] / 1e6:.0f}", f"{r['measured'] / 1e6:.0f}", f"{ratio:.2f}", verdict, role])
    return markdown(rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shapes", nargs="*", default=[*SHAPES], choices=[*SHAPES])
    parser.add_argument("--phases", nargs="*", default=PHASES, choices=PHASES, help="what to measure anew")
    parser.add_argument("--plan-only", action="store_true", help="plan anew beside what was measured before")
    parser.add_argument("--missing", action="store_true", help="measure only what has not been measured")
    parser.add_argument("--here", action="store_true", help="measure them in this process; prints a line of JSON for each")
    options = parser.parse_args()
    if options.here:
        for phase in options.phases:
            sys.stdout.write(json.dumps({f"{options.shapes[0]}/{phase}": measured(Case(options.shapes[0], phase))}) + "\n")
            sys.stdout.flush()
        return
    stored = HERE / "results.json"
    results = json.loads(stored.read_text(encoding="utf-8")) if stored.exists() else {}
    for shape in options.shapes:
        folder = Path("outputs/memory_plan") / shape
        save_config(SHAPES[shape](), folder)
        phases = [p for p in options.phases if not (options.missing and "measured" in results.get(f"{shape}/{p}", {}))]
        if not options.plan_only and phases:
            command = [sys.executable, __file__, "--here", "--shapes", shape, "--phases", *phases]
            done = subprocess.run(command, stdout=subprocess.PIPE, check=True, text=True, env=os.environ | RETURNED)
            for line in done.stdout.splitlines():
                results |= json.loads(line)
        for phase in options.phases:
            key = f"{shape}/{phase}"
            results[key] |= planned(Case(shape, phase), folder)
            r = results[key]
            sys.stderr.write(
                f"{key}: {r['planned'] / 1e6:.0f} MB planned, {r['measured'] / 1e6:.0f} measured, "
                f"{r['planned'] / r['measured']:.2f}, {r['seconds']:.0f} s\n"
            )
            stored.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    ordered = {f"{s}/{p}": results[f"{s}/{p}"] for s in SHAPES for p in PHASES if "planned" in results.get(f"{s}/{p}", ())}
    if (HERE / "README.md").exists():
        fill(HERE / "README.md", tables(ordered))


if __name__ == "__main__":
    main()
