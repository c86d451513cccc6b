"""Measures seconds, memory and work of each phase of a step. Methods take turns, so that all see the same
noise."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any

import torch

from oar_lightning.benchmark.held_memory import read_peak, reset_peak
from oar_lightning.benchmark.machine_load import Patience, is_quiet
from oar_lightning.benchmark.phases import SAME_WORK, phases_of_step
from oar_lightning.benchmark.summary import Measurement, Need, PhaseTime, Step, summarise
from oar_lightning.benchmark.work import Rates, WorkCount, measure_rates, product_seconds, synchronise
from oar_lightning.benchmark.workload import RandomShape, Workload
from oar_lightning.common.ranges import NonNegativeFloat, PositiveInt, Rule, checked
from oar_lightning.training.module import PolicyOptimization
from oar_lightning.training.slots import UpdatePlan

CLOCKED_ROUNDS = 3
"""Rounds in which a profiler times products and attention, which slows all else down."""


@checked(
    "benchmark",
    Rule(
        lambda variants: "grpo" in variants,
        "benchmark.variants must include grpo, which the others are compared with; leave out ~benchmark.variants.grpo",
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
        warmup: untimed rounds before them; in the last of them work is counted and memory measured.
        tries: how often a step is made while something else uses the machine; the quietest counts.
        patience: seconds to wait in all for a quiet machine before a step is made again.
        output: JSON file for the results; None writes none.
        report: folder for a Markdown page and a figure; None writes none.
        step_bars: variant -> upper limit of its step's seconds over GRPO's; shown in the report.
        sequence_bars: variant -> upper limit of scoring seconds a completion; shown in the report.
    """

    preset: str
    variants: Mapping[str, Any]
    shape: RandomShape | None = None
    repeats: PositiveInt = 5
    warmup: Annotated[PositiveInt, "a number of rounds, the last of which counts the work,"] = 2
    tries: PositiveInt = 3
    patience: NonNegativeFloat = 120.0
    output: str | None = None
    report: str | None = None
    step_bars: Mapping[str, float] = field(default_factory=dict)
    sequence_bars: Mapping[str, float] = field(default_factory=dict)


def rounds(config: BenchmarkConfig, device: torch.device) -> int:
    """All of them, untimed ones included."""
    return config.warmup + config.repeats + (CLOCKED_ROUNDS if device.type == "cpu" else 0)


def measure(
    config: BenchmarkConfig,
    workload: Workload,
    modules: Mapping[str, PolicyOptimization],
    update: UpdatePlan,
    advance: Callable[[int], None] = lambda count: None,
) -> Measurement:
    """Run all rounds. Weights do not change."""
    device = workload.device
    rates = measure_rates(device, workload.dtype)
    patience = Patience(config.tries, config.patience)
    needed: dict[str, Mapping[str, Need]] = {}
    timed: dict[str, list[Step]] = {name: [] for name in modules}
    clocked: dict[str, list[Mapping[str, float]]] = {name: [] for name in modules}
    repeated = disturbed = 0
    sequences = 1
    for number in range(rounds(config, device)):
        common: dict[str, Need] = {}
        for name, module in modules.items():

            def step(name: str = name, module: PolicyOptimization = module, number: int = number) -> Step:
                return {phase: _timed(run, device) for phase, run in phases_of_step(workload, module, update, number)}

            if number < config.warmup:
                # counting work and memory slows a round down, which is therefore never timed
                needed[name] = _needs(phases_of_step(workload, module, update, number), common, device, rates)
            elif number >= config.warmup + config.repeats:
                phases = phases_of_step(workload, module, update, number)
                clocked[name].append({phase: product_seconds(run) for phase, run in phases})
            else:
                best, others, tries = patience.quietest(step)
                timed[name].append(best)
                repeated += tries - 1
                disturbed += not is_quiet(others)
            assert module.experience is not None
            sequences = len(module.experience.rollouts)
            advance(1)
    results = summarise(config.preset, timed, needed, clocked, sequences, rates, disturbed)
    return Measurement(results, rates, config.repeats * len(modules), repeated, disturbed)


def _timed(run: Callable[[], None], device: torch.device) -> PhaseTime:
    synchronise(device)
    before = reset_peak(device) if device.type == "cuda" else None
    started, cpu = time.perf_counter(), time.process_time()
    run()
    synchronise(device)
    seconds, cpu_seconds = time.perf_counter() - started, time.process_time() - cpu
    return PhaseTime(seconds, cpu_seconds, None if before is None else read_peak(device) - before)


def _needs(
    phases: Iterable[tuple[str, Callable[[], None]]], common: dict[str, Need], device: torch.device, rates: Rates
) -> Mapping[str, Need]:
    """What each phase takes. Of `SAME_WORK` the first method's counts for all, and is added to `common`."""
    found = {}
    for phase, run in phases:
        if phase in common:
            run()
            found[phase] = common[phase]
            continue
        found[phase] = _needed(run, device, rates)
        if phase in SAME_WORK:
            common[phase] = found[phase]
    return found


def _needed(run: Callable[[], None], device: torch.device, rates: Rates) -> Need:
    synchronise(device)
    before = reset_peak(device)
    with WorkCount(rates) as counter:
        run()
    synchronise(device)
    peak = None if before is None else max(0, read_peak(device) - before)
    return Need(peak, counter.work)
