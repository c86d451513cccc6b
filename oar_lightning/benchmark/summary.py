"""What a benchmark finds: of each phase of each method the median over the rounds."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from oar_lightning.benchmark.phases import IN_A_STEP, SAME_WORK, TIMED_PHASES
from oar_lightning.benchmark.work import Rates, Work


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


class PhaseTime(NamedTuple):
    seconds: float
    cpu_seconds: float
    peak: int | None
    """Of a GPU, where it costs nothing to read."""


class Need(NamedTuple):
    """What one phase of one step takes, other than time."""

    peak: int | None
    work: Work


Step = Mapping[str, PhaseTime]
"""By phase."""


def summarise(
    preset: str,
    timed: Mapping[str, Sequence[Step]],
    needed: Mapping[str, Mapping[str, Need]],
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


def _alike(timed: Mapping[str, Sequence[Step]]) -> dict[str, list[Step]]:
    """The same steps with what `SAME_WORK` takes in a round the same for all methods, their median: else how lucky a method was
    there would be in its ratio to GRPO."""
    found: dict[str, list[Step]] = {name: [] for name in timed}
    for together in zip(*timed.values(), strict=True):
        same = {
            phase: PhaseTime(
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


def _totals(steps: Sequence[Step], phases: Sequence[str]) -> list[float]:
    """Seconds of these phases together, in each round."""
    return [sum(step[phase].seconds for phase in phases) for step in steps]
