"""Writes a benchmark's results as tables, a page and a figure."""

from __future__ import annotations

import json
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path

from oar_lightning.benchmark.machine_load import QUIET
from oar_lightning.benchmark.measure import CLOCKED_ROUNDS, BenchmarkConfig
from oar_lightning.benchmark.phases import IN_A_STEP, SAME_WORK, TIMED_PHASES
from oar_lightning.benchmark.summary import Measurement, PhaseResult
from oar_lightning.common.markdown import markdown

FEWEST_ROUNDS = 3
"""Timed steps of each variant that a verdict needs."""

COLORS = {"rollout": "#7b8794", "reward": "#c3cad1", "scoring": "#d9822b", "update": "#4a67c8"}


def phase_table(measured: Measurement, bars: Mapping[str, float]) -> list[list[str]]:
    """Header and rows: variant, seconds of each phase and of the step, its processor seconds, its ratio to GRPO's, and the
    target for that."""
    rows = [["variant", *(f"{p} s" for p in TIMED_PHASES), "step s", "step CPU s", "step / grpo", "target"]]
    for name, phases in by_variant(measured.results).items():
        ratio = phases["step"].step_ratio
        assert ratio is not None
        seconds = [f"{phases[phase].median_seconds:.3f}" for phase in (*TIMED_PHASES, "step")]
        low, high = phases["step"].step_ratio_range or (ratio, ratio)
        shown = f"{ratio:.2f} ({low:.2f} to {high:.2f})" if low < high else f"{ratio:.2f}"
        cells = [*seconds, f"{phases['step'].cpu_seconds:.3f}", shown, _bar(bars.get(name), ratio, measured)]
        rows.append([name, *cells])
    return rows


def scoring_table(measured: Measurement, bars: Mapping[str, float]) -> list[list[str]]:
    """Header and rows: the cost of scoring in seconds a sequence, work, forward passes, floor, how a step would stand to
    GRPO's if it took no longer than its floor, the same for what its products and attention take, and memory; and its time and
    memory relative to those of exact OAR-P."""
    columns = ["s / sequence", "target", "GFLOP", "forward-equivalents", "floor s", "measured / floor", "step / grpo at floor"]
    columns += ["products s", "step / grpo with products alone", "in both"]
    rows = [["variant", *columns, "peak MB", "time / oar_p", "peak / oar_p"]]
    variants = by_variant(measured.results)
    exact = variants["oar_p"]["scoring"] if "oar_p" in variants else None
    grpo, bare = variants["grpo"]["step"].median_seconds, variants["grpo"]["step"].product_seconds
    for name, phases in variants.items():
        s = phases["scoring"]
        if not s.gflop:
            continue
        relative = "-" if exact is None else f"{s.median_seconds / exact.median_seconds:.2f}"
        relative_peak = "-"
        if s.peak_bytes is not None and exact is not None and exact.peak_bytes:
            relative_peak = f"{s.peak_bytes / exact.peak_bytes:.1f}"
        rows.append(
            [
                name,
                f"{s.seconds_per_sequence:.4f}",
                _bar(bars.get(name), s.seconds_per_sequence, measured),
                f"{s.gflop:.1f}",
                f"{s.forward_equivalents:.2f}",
                f"{s.floor_seconds:.3f}",
                f"{s.median_seconds / s.floor_seconds:.1f}",
                f"{1 + s.floor_seconds / grpo:.2f}",
                *_of_products(s.product_seconds, grpo, bare),
                "-" if s.peak_bytes is None else f"{s.peak_bytes / 2**20:.0f}",
                relative,
                relative_peak,
            ]
        )
    return rows


def _of_products(own: float | None, grpo: float, bare: float | None) -> list[str]:
    """Seconds of scoring's products and attention, and a step's time over GRPO's if scoring took no more, and if both did."""
    if own is None or not bare:
        return ["-"] * 3
    return [f"{own:.3f}", f"{1 + own / grpo:.2f}", f"{1 + own / bare:.2f}"]


def floors_table(measured: Measurement) -> list[list[str]]:
    """Header and rows: each phase of GRPO's step, its work, floors, the seconds of its products and attention, its memory."""
    floor = ["floor s", "measured / floor", "roofline s", "measured / roofline", "products s", "products / floor"]
    rows = [["phase", "s", "GFLOP", *floor, "peak MB"]]
    for phase, r in by_variant(measured.results)["grpo"].items():
        if not r.gflop:
            continue
        floors = [f"{r.floor_seconds:.3f}", f"{r.median_seconds / r.floor_seconds:.1f}"]
        floors += [f"{r.roofline_seconds:.3f}", f"{r.median_seconds / r.roofline_seconds:.1f}"]
        own = r.product_seconds
        floors += ["-", "-"] if own is None else [f"{own:.3f}", f"{own / r.floor_seconds:.1f}"]
        peak = "-" if r.peak_bytes is None else f"{r.peak_bytes / 2**20:.0f}"
        rows.append([phase, f"{r.median_seconds:.3f}", f"{r.gflop:.1f}", *floors, peak])
    return rows


def _bar(bar: float | None, value: float, measured: Measurement) -> str:
    """Seconds of a machine that does other work too are no verdict, to neither side, nor is a median of one or two."""
    if bar is None:
        return "-"
    if measured.disturbed:
        return f"{bar:g} (disturbed)"
    if measured.rounds < FEWEST_ROUNDS:
        return f"{bar:g} (rounds: {measured.rounds})"
    return f"{bar:g} ({'met' if value <= bar else 'not met'})"


def quietness(measured: Measurement) -> str:
    """A sentence: whether anything else used the machine, so that times tell more than the program's speed."""
    text = (
        f"{measured.steps} timed steps; {measured.repeated} further tries did not count, because something else used more "
        f"than {100 * QUIET:.0f} % of the cores"
    )
    if measured.rounds < FEWEST_ROUNDS:
        text += f". No target is judged by fewer than {FEWEST_ROUNDS} rounds (benchmark.repeats)"
    if not measured.disturbed:
        return text + "."
    return text + (
        f". **During {measured.disturbed} of the steps that count something did, too**: no target is judged; run it again on a "
        "machine that does nothing else, or compare CPU seconds."
    )


def by_variant(results: Sequence[PhaseResult]) -> dict[str, dict[str, PhaseResult]]:
    """Variant -> phase -> result."""
    out: dict[str, dict[str, PhaseResult]] = {}
    for result in results:
        out.setdefault(result.variant, {})[result.phase] = result
    return out


def read_results(path: Path) -> dict[str, dict[str, PhaseResult]]:
    """Variant -> phase -> result, of the file that `benchmark.output` names."""
    return by_variant([PhaseResult(**row) for row in json.loads(path.read_text(encoding="utf-8"))])


TITLE = "# Benchmark"


def write_report(folder: Path, config: BenchmarkConfig, measured: Measurement, command: str, machine: str) -> None:
    """Write README.md and steps.png in `folder`; both are overwritten."""
    folder.mkdir(parents=True, exist_ok=True)
    work, shared, memory = (rate / 1e9 for rate in measured.rates)
    text = f"""{TITLE} `{config.preset}`

**Command.** `{command}`

{machine}. Matrix products reach {work:.0f} GFLOP/s here (best of 15, on a CPU of
the faster of two libraries); a phase's floor is its floating-point work (products and attention, counted, rows of padding
included) at that rate. Methods take turns round by round; medians, of `step / grpo` that of the ratios within a round (smallest
to largest). A step is rollout + reward + scoring + update, of which the first two, the same work whatever the method is, count
with the round's median over the methods; its CPU seconds are those of all threads of the process. `logprobs`
is one forward pass of the batch, the unit of forward-equivalents; an on-policy step has none of its own, and with several
optimizer steps a batch it is part of scoring.
{quietness(measured)}

{markdown(phase_table(measured, config.step_bars))}

## Scoring
{markdown(scoring_table(measured, config.sequence_bars))}

"At floor": GRPO's step plus the scoring's floor, over GRPO's step. No program of the same work is below it at that rate.
"Products s": what the products and attention of scoring take at these shapes (by torch's profiler, median of {CLOCKED_ROUNDS}
rounds of their own). "With products alone": GRPO's step plus these seconds, over GRPO's step, which is what is left if nothing
else in scoring takes time. "In both": the same where GRPO's step, too, takes what its products take: the ratio goes there
as all else gets faster.

## Phases of GRPO's step
{markdown(floors_table(measured))}

The roofline counts for each product and attention the longer of its work and of moving its tensors. How a tensor moves is
decided by the bytes that products and attention have touched since they touched it last: up to 1 MB for nothing (a core's own
cache), up to 32 MB at {shared:.0f} GB/s (the cache that cores share; best of 15 sums over 16 MB), else at {memory:.0f} GB/s
(sums over 256 MB; on a GPU both are of 1 GB). Other guests of a shared processor show in these rates alone. Elementwise
work is in neither floor nor roofline.

Peak memory is what the phase held above what was there before it (on the CPU: resident memory; on a GPU: tensors). Work and
memory are those of an untimed round: on the CPU freed memory goes back to the system before each of its phases, which a
training run keeps. On a GPU the largest memory of all rounds counts. Rollout, reward and `logprobs` do the same work whatever
the method is, and are counted once.

![Seconds of a step by phase](steps.png)
"""
    (folder / "README.md").write_text(text, encoding="utf-8")
    _plot(folder / "steps.png", config.preset, measured.results)


def _plot(path: Path, preset: str, results: Sequence[PhaseResult]) -> None:
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    variants = by_variant(results)
    figure, axis = plt.subplots(figsize=(7.5, 0.5 * len(variants) + 1.8), layout="constrained")
    left = dict.fromkeys(variants, 0.0)
    for phase in IN_A_STEP:
        seconds = {name: rows[phase].median_seconds for name, rows in variants.items()}
        if phase in SAME_WORK:  # counts alike in all steps
            seconds = dict.fromkeys(variants, statistics.median(seconds.values()))
        axis.barh([*variants], [*seconds.values()], left=[*left.values()], color=COLORS[phase], label=phase)
        left = {name: left[name] + s for name, s in seconds.items()}
    for place, (name, rows) in enumerate(variants.items()):
        axis.text(left[name], place, f"  {rows['step'].step_ratio:.2f}x", va="center")
    axis.invert_yaxis()
    axis.margins(x=0.12)
    axis.set(xlabel="seconds of a step (median)", title=f"benchmark={preset}")
    figure.legend(loc="outside lower center", ncols=len(IN_A_STEP))
    figure.savefig(path, dpi=130)
    plt.close(figure)
