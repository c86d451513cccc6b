"""Measures seconds, memory and floating-point work of each phase of a step. Methods take turns, so that all see the same
noise."""

from __future__ import annotations

import contextlib
import ctypes
import dataclasses
import re
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry, sdpa_backward_flop_count, sdpa_flop_count

from oar_lightning.benchmark.workload import RandomShape, Workload
from oar_lightning.common.ranges import PositiveInt, Rule, checked
from oar_lightning.policy.language_model import evaluating, token_logprobs
from oar_lightning.training.experience import Experience
from oar_lightning.training.module import PolicyOptimization
from oar_lightning.training.slots import Slot, UpdatePlan

TIMED_PHASES = ("rollout", "reward", "logprobs", "scoring", "update")
IN_A_STEP = ("rollout", "reward", "scoring", "update")
"""Phases of an on-policy step, whose old log-probabilities are the policy's own. `logprobs` is measured separately: one
forward pass over the batch, the unit of forward-equivalents."""


@checked(
    "benchmark",
    Rule(
        lambda variants: "grpo" in variants,
        "benchmark.variants must include grpo, which the others are compared with, got {variants}",
    ),
)
@dataclass(frozen=True)
class BenchmarkConfig:
    """Settings of a benchmark.

    Args:
        preset: name of the benchmark, for tables and files.
        shape: a random policy's shape; None measures the configured policy and data.
        variants: name -> scorer; `grpo` is what the others are compared with.
        repeats: timed rounds; every variant runs once a round.
        warmup: untimed rounds before them, at least one, in which the work is counted.
        output: JSON file for the results; None writes none.
        report: folder for a Markdown page and a figure; None writes none.
        step_bars: variant -> upper limit of its step's seconds over GRPO's; shown in the report.
        sequence_bars: variant -> upper limit of scoring seconds a completion; shown in the report.
    """

    preset: str
    variants: Mapping[str, Any]
    shape: RandomShape | None = None
    repeats: PositiveInt = 5
    warmup: Annotated[PositiveInt, "a number of rounds, the first of which counts the work,"] = 1
    output: str | None = None
    report: str | None = None
    step_bars: Mapping[str, float] = field(default_factory=dict)
    sequence_bars: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class PhaseResult:
    """One phase of one variant: medians over the rounds.

    `floor_seconds`: the phase's floating-point work at the machine's matrix rate. `step_ratio` (phase `step` only): the median
    over rounds of this variant's step seconds over GRPO's in the same round.
    """

    preset: str
    variant: str
    phase: str
    median_seconds: float
    seconds_per_sequence: float
    peak_bytes: int | None
    gflop: float
    floor_seconds: float
    forward_equivalents: float
    step_ratio: float | None = None


def measure(
    config: BenchmarkConfig,
    workload: Workload,
    modules: Mapping[str, PolicyOptimization],
    update: UpdatePlan,
    advance: Callable[[int], None] = lambda count: None,
) -> tuple[list[PhaseResult], float]:
    """Run all rounds; returns the results and the machine's matrix rate in FLOP/s. Weights do not change."""
    device = workload.policy.model.get_input_embeddings().weight.device
    rate = matrix_rate(device, next(workload.policy.model.parameters()).dtype)
    runs: dict[tuple[str, str], list[tuple[float, int | None]]] = {}
    work: dict[tuple[str, str], float] = {}
    sequences = 1
    for number in range(config.warmup + config.repeats):
        for name, module in modules.items():
            steps = _phases(workload, module, update, number)
            for phase, run in steps:
                # counting the work slows the first round down, which is therefore never timed
                counted = number == 0
                seconds, peak, flops = _timed(run, device, count=counted)
                if counted:
                    work[name, phase] = flops
                if number >= config.warmup:
                    runs.setdefault((name, phase), []).append((seconds, peak))
            assert module.experience is not None
            sequences = len(module.experience.rollouts)
            advance(1)
    return _summarise(config.preset, list(modules), runs, work, sequences, rate), rate


def _summarise(
    preset: str,
    variants: Sequence[str],
    runs: Mapping[tuple[str, str], Sequence[tuple[float, int | None]]],
    work: Mapping[tuple[str, str], float],
    sequences: int,
    rate: float,
) -> list[PhaseResult]:
    forward = max(1.0, work["grpo", "logprobs"])
    results = []
    for name in variants:
        totals = _steps(runs, name)
        ratio = statistics.median(a / b for a, b in zip(totals, _steps(runs, "grpo"), strict=True))
        for phase in (*TIMED_PHASES, "step"):
            parts = IN_A_STEP if phase == "step" else (phase,)
            seconds = statistics.median(totals if phase == "step" else [s for s, _ in runs[name, phase]])
            flops = sum(work[name, part] for part in parts)
            peaks = [peak for part in parts for _, peak in runs[name, part] if peak is not None]
            results.append(
                PhaseResult(
                    preset=preset,
                    variant=name,
                    phase=phase,
                    median_seconds=seconds,
                    seconds_per_sequence=seconds / sequences,
                    peak_bytes=max(peaks, default=None),
                    gflop=flops / 1e9,
                    floor_seconds=flops / rate,
                    forward_equivalents=flops / forward,
                    step_ratio=ratio if phase == "step" else None,
                )
            )
    return results


def _steps(runs: Mapping[tuple[str, str], Sequence[tuple[float, int | None]]], name: str) -> list[float]:
    """Seconds of the whole step in each round."""
    return [sum(s for s, _ in parts) for parts in zip(*(runs[name, phase] for phase in IN_A_STEP), strict=True)]


def _phases(
    workload: Workload, module: PolicyOptimization, update: UpdatePlan, number: int
) -> Iterator[tuple[str, Callable[[], None]]]:
    """The phases of one step in order, each with the function that runs it; later phases use the results of earlier ones."""
    held: dict[str, Any] = {}

    def rollout() -> None:
        held["generation"] = workload.sample(number)

    def reward() -> None:
        held["rollouts"] = workload.judge(held["generation"], number)
        held["advantages"] = module.collector.advantages(held["rollouts"].reward_terms, held["rollouts"].group_size)

    def logprobs() -> None:
        part = held["rollouts"]
        with evaluating(module.model), torch.no_grad():
            token_logprobs(module.model, part.token_ids, part.attention_mask, part.response_mask)

    def scoring() -> None:
        credit = module.collector.assign_credit(dataclasses.replace(held["rollouts"], advantages=held["advantages"]))
        module.experience = Experience(dataclasses.replace(held["rollouts"], prediction_states=None), credit)

    def optimise() -> None:
        optimizer = held.setdefault("optimizer", torch.optim.AdamW(module.parameters(), lr=0.0))
        for index in range(update.microbatches):
            loss = module.training_step(Slot((), number, 0, 0, index), 0)
            if loss is not None:
                loss.backward()
        torch.nn.utils.clip_grad_norm_(module.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()

    yield from zip(TIMED_PHASES, (rollout, reward, logprobs, scoring, optimise), strict=True)


def _timed(run: Callable[[], None], device: torch.device, count: bool) -> tuple[float, int | None, float]:
    """Seconds, peak bytes above those held before, and floating-point operations (0 unless counted)."""
    counter = FlopCount() if count else contextlib.nullcontext()
    _synchronise(device)
    before = _reset_peak(device)
    started = time.perf_counter()
    with counter:
        run()
    _synchronise(device)
    seconds = time.perf_counter() - started
    peak = None if before is None else max(0, _peak(device) - before)
    return seconds, peak, counter.total if isinstance(counter, FlopCount) else 0.0


_CPU_ATTENTION = "_scaled_dot_product_flash_attention_for_cpu"


class FlopCount(TorchDispatchMode):
    """Sums the floating-point operations of matrix products and attention. Torch's own counter refuses `autograd.grad` and does
    not know the CPU's attention."""

    def __init__(self) -> None:
        super().__init__()
        self.total = 0.0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        formula = flop_registry.get(func._overloadpacket)
        if func._overloadpacket.__name__ == _CPU_ATTENTION:
            self.total += sdpa_flop_count(*(x.shape for x in args[:3]))
        elif func._overloadpacket.__name__ == _CPU_ATTENTION + "_backward":
            self.total += sdpa_backward_flop_count(*(x.shape for x in args[:4]))
        elif formula is not None:
            self.total += formula(*args, **(kwargs or {}), out_val=out)
        return out


def matrix_rate(device: torch.device, dtype: torch.dtype, size: int = 1536, repeats: int = 15) -> float:
    """FLOP/s of a square matrix product: the best of several, because the floor must not depend on other load."""
    a, b = (torch.randn(size, size, device=device).to(dtype) for _ in range(2))
    a @ b
    best = float("inf")
    for _ in range(repeats):
        _synchronise(device)
        started = time.perf_counter()
        a @ b
        _synchronise(device)
        best = min(best, time.perf_counter() - started)
    return 2 * size**3 / best


def _synchronise(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _reset_peak(device: torch.device) -> int | None:
    """Reset the peak of memory; returns the bytes held now, or None where they cannot be read (CPU memory outside Linux)."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
        return torch.cuda.memory_allocated(device)
    try:
        ctypes.CDLL("libc.so.6").malloc_trim(0)  # freed memory must not count as held
        Path("/proc/self/clear_refs").write_text("5")  # 5: resets the peak of resident memory
        return process_memory("VmRSS")
    except OSError:
        return None


def _peak(device: torch.device) -> int:
    return torch.cuda.max_memory_allocated(device) if device.type == "cuda" else process_memory("VmHWM")


def process_memory(key: str) -> int:
    """A number of bytes of /proc/self/status: `VmRSS` (resident now) or `VmHWM` (its peak)."""
    match = re.search(rf"{key}:\s+(\d+) kB", Path("/proc/self/status").read_text())
    assert match is not None
    return int(match[1]) * 1024
