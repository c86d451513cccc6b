"""Measures seconds, memory and work of each phase of a step. Methods take turns, so that all see the same
noise."""

from __future__ import annotations

import dataclasses
import itertools
import statistics
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, NamedTuple

import torch

from oar_lightning.benchmark.held_memory import read_peak, reset_peak
from oar_lightning.benchmark.machine_load import Patience, is_quiet
from oar_lightning.benchmark.work import Rates, Work, WorkCount, measure_rates, product_seconds, synchronise
from oar_lightning.benchmark.workload import RandomShape, Workload
from oar_lightning.common.ranges import NonNegativeFloat, PositiveInt, Rule, checked
from oar_lightning.policy.language_model import evaluating
from oar_lightning.policy.lm_head import token_logprobs
from oar_lightning.training.module import PolicyOptimization
from oar_lightning.training.slots import Slot, UpdatePlan

TIMED_PHASES = ("rollout", "reward", "logprobs", "scoring", "update")
IN_A_STEP = ("rollout", "reward", "scoring", "update")
"""Phases of a step. With one optimizer step a batch its old log-probabilities are the policy's own; with several they are part
of `scoring`, whatever the method is. `logprobs` is measured separately: one forward pass over the batch, the unit of
forward-equivalents."""
SAME_WORK = ("rollout", "reward", "logprobs")
"""Phases that do the same work whatever the method is: completions depend on the round alone."""
CLOCKED_ROUNDS = 3
"""Rounds in which a profiler times products and attention, which slows all else down."""


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


@dataclass(frozen=True)
class PhaseResult:
    """One phase of one variant: medians over the rounds.

    `cpu_seconds`: processor time of this process, all threads. `floor_seconds`: the phase's floating-point work at the
    machine's matrix rate. `roofline_seconds`: the same, but of each operation moving its tensors counts where that takes longer
    (Williams, Waterman and Patterson, 2009). `product_seconds`: what these operations took in the phase, in rounds of their own
    (None on a GPU, which goes on by itself). `step_ratio` (phase `step` only): the median over rounds of this variant's step
    seconds over GRPO's in the same round; `step_ratio_range`: the smallest and the largest of them. `rounds`: how many times
    the step was timed; `disturbed`: during how many steps, of all methods, something else used the machine. `peak_bytes`: None
    of a step, which may hold what several phases do. In a step the phases of `SAME_WORK` count with the round's median over the
    methods.
    """

    preset: str
    variant: str
    phase: str
    median_seconds: float
    cpu_seconds: float
    seconds_per_sequence: float
    peak_bytes: int | None
    gflop: float
    floor_seconds: float
    roofline_seconds: float
    forward_equivalents: float
    product_seconds: float | None = None
    step_ratio: float | None = None
    step_ratio_range: Sequence[float] | None = None
    rounds: int = 0
    disturbed: int = 0


@dataclass(frozen=True)
class Measurement:
    """All results; the machine's `rates`; how many timed `steps` count, how many further tries did
    not (`repeated`), and during how many of the counted ones something else used the machine (`disturbed`)."""

    results: Sequence[PhaseResult]
    rates: Rates
    steps: int
    repeated: int
    disturbed: int

    @property
    def rounds(self) -> int:
        """How many times each variant's step was timed."""
        return self.steps // len({result.variant for result in self.results})


class _PhaseTime(NamedTuple):
    seconds: float
    cpu_seconds: float
    peak: int | None
    """Of a GPU, where it costs nothing to read."""


class _Need(NamedTuple):
    """What one phase of one step takes, other than time."""

    peak: int | None
    work: Work


_Step = Mapping[str, _PhaseTime]
"""By phase."""


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
    needed: dict[str, Mapping[str, _Need]] = {}
    timed: dict[str, list[_Step]] = {name: [] for name in modules}
    clocked: dict[str, list[Mapping[str, float]]] = {name: [] for name in modules}
    repeated = disturbed = 0
    sequences = 1
    for number in range(rounds(config, device)):
        common: dict[str, _Need] = {}
        for name, module in modules.items():

            def step(name: str = name, module: PolicyOptimization = module, number: int = number) -> _Step:
                return {phase: _timed(run, device) for phase, run in _phases(workload, module, update, number)}

            if number < config.warmup:
                # counting work and memory slows a round down, which is therefore never timed
                needed[name] = _needs(_phases(workload, module, update, number), common, device, rates)
            elif number >= config.warmup + config.repeats:
                phases = _phases(workload, module, update, number)
                clocked[name].append({phase: product_seconds(run) for phase, run in phases})
            else:
                best, others, tries = patience.quietest(step)
                timed[name].append(best)
                repeated += tries - 1
                disturbed += not is_quiet(others)
            assert module.experience is not None
            sequences = len(module.experience.rollouts)
            advance(1)
    results = _summarise(config.preset, timed, needed, clocked, sequences, rates, disturbed)
    return Measurement(results, rates, config.repeats * len(modules), repeated, disturbed)


def _summarise(
    preset: str,
    timed: Mapping[str, Sequence[_Step]],
    needed: Mapping[str, Mapping[str, _Need]],
    clocked: Mapping[str, Sequence[Mapping[str, float]]],
    sequences: int,
    rates: Rates,
    disturbed: int,
) -> list[PhaseResult]:
    forward = max(1.0, needed["grpo"]["logprobs"].work.flops)
    alike = _alike(timed)
    base = _totals(alike["grpo"], IN_A_STEP)
    results = []
    for name, steps in timed.items():
        for phase in (*TIMED_PHASES, "step"):
            parts, own = (IN_A_STEP, alike[name]) if phase == "step" else ((phase,), steps)
            seconds = statistics.median(_totals(own, parts))
            flops, roofline = (sum(column) for column in zip(*(needed[name][part].work for part in parts), strict=True))
            peaks = [step[part].peak for step in steps for part in parts] + [needed[name][part].peak for part in parts]
            ratios = [whole / grpo for whole, grpo in zip(_totals(alike[name], IN_A_STEP), base, strict=True)]
            results.append(
                PhaseResult(
                    preset=preset,
                    variant=name,
                    phase=phase,
                    median_seconds=seconds,
                    cpu_seconds=statistics.median(sum(step[part].cpu_seconds for part in parts) for step in own),
                    seconds_per_sequence=seconds / sequences,
                    peak_bytes=max((p for p in peaks if p is not None), default=None) if phase != "step" else None,
                    gflop=flops / 1e9,
                    floor_seconds=flops / rates.flops,
                    roofline_seconds=roofline,
                    forward_equivalents=flops / forward,
                    product_seconds=_median(sum(clock[part] for part in parts) for clock in clocked[name]),
                    step_ratio=statistics.median(ratios) if phase == "step" else None,
                    step_ratio_range=(min(ratios), max(ratios)) if phase == "step" else None,
                    rounds=len(steps),
                    disturbed=disturbed,
                )
            )
    return results


def _alike(timed: Mapping[str, Sequence[_Step]]) -> dict[str, list[_Step]]:
    """The same steps with what `SAME_WORK` takes in a round the same for all methods, their median: else how lucky a method was
    there would be in its ratio to GRPO."""
    found: dict[str, list[_Step]] = {name: [] for name in timed}
    for together in zip(*timed.values(), strict=True):
        same = {
            phase: _PhaseTime(
                statistics.median(step[phase].seconds for step in together),
                statistics.median(step[phase].cpu_seconds for step in together),
                None,
            )
            for phase in SAME_WORK
        }
        for name, step in zip(timed, together, strict=True):
            found[name].append({**step, **same})
    return found


def _median(values: Iterable[float]) -> float | None:
    """None of no values."""
    return statistics.median(found) if (found := list(values)) else None


def _totals(steps: Sequence[_Step], phases: Sequence[str]) -> list[float]:
    """Seconds of these phases together, in each round."""
    return [sum(step[phase].seconds for phase in phases) for step in steps]


def _phases(
    workload: Workload, module: PolicyOptimization, update: UpdatePlan, number: int
) -> Iterator[tuple[str, Callable[[], None]]]:
    """The phases of one step in order, each with the function that runs it; later phases use the results of earlier ones."""
    held: dict[str, Any] = {}

    def rollout() -> None:
        with workload.precision:
            held["generation"] = workload.sample(number)

    def reward() -> None:
        held["rollouts"] = workload.judge(held["generation"], number)
        held["advantages"] = module.collector.advantages(held["rollouts"].reward_terms, held["rollouts"].group_size)

    def logprobs() -> None:
        part = held["rollouts"]
        with evaluating(module.model), torch.no_grad(), workload.precision:
            token_logprobs(module.model, part.token_ids, part.attention_mask, part.response_mask)

    def scoring() -> None:
        rollouts = dataclasses.replace(held["rollouts"], advantages=held["advantages"])
        with workload.precision:
            module.experience = module.collector.experience(rollouts)

    def optimise() -> None:
        trained = [p for p in module.parameters() if p.requires_grad]
        optimizer = module.make_optimizer(trained, lr=0.0)
        for epoch, minibatch in itertools.product(range(update.inner_epochs), range(update.minibatches)):
            for index in range(update.microbatches):
                with workload.precision:
                    loss = module.training_step(Slot((), number, epoch, minibatch, index), 0)
                if loss is not None:
                    loss.backward()
            torch.nn.utils.clip_grad_norm_(trained, 1.0)
            optimizer.step()
            optimizer.zero_grad()

    yield from zip(TIMED_PHASES, (rollout, reward, logprobs, scoring, optimise), strict=True)


def _timed(run: Callable[[], None], device: torch.device) -> _PhaseTime:
    synchronise(device)
    before = reset_peak(device) if device.type == "cuda" else None
    started, cpu = time.perf_counter(), time.process_time()
    run()
    synchronise(device)
    seconds, cpu_seconds = time.perf_counter() - started, time.process_time() - cpu
    return _PhaseTime(seconds, cpu_seconds, None if before is None else read_peak(device) - before)


def _needs(
    phases: Iterable[tuple[str, Callable[[], None]]], common: dict[str, _Need], device: torch.device, rates: Rates
) -> Mapping[str, _Need]:
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


def _needed(run: Callable[[], None], device: torch.device, rates: Rates) -> _Need:
    synchronise(device)
    before = reset_peak(device)
    with WorkCount(rates) as counter:
        run()
    synchronise(device)
    peak = None if before is None else max(0, read_peak(device) - before)
    return _Need(peak, counter.work)
