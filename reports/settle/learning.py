"""The figure of README.md: training reward, update by update, of arms at the settings that tuning chose."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from matplotlib.colors import to_rgba
from records import Row, endpoint_runs
from rules import BASELINE, PERFECT

from oar_lightning.reporting.bands import Band, band, smoothed
from oar_lightning.reporting.figures.drawing import axes, legend_below, save
from oar_lightning.reporting.method_style import STYLES
from oar_lightning.reporting.runs import Curves

SHOWN = {
    BASELINE: "GRPO",
    PERFECT: "perfect credit (is told the wrong step)",
    "turning_point": "turning point",
    "anchor_states": "shared states",
    "oar_g": "OAR-G",
}
TASKS = ("asides", "graph")


def learning_bands(rows: Sequence[Row], curves: Curves, task: str) -> dict[str, Band]:
    """Arm -> the band of its endpoint runs' rewards, as running means over a twentieth of the updates. Of the seeds that all
    these arms have: runs of a seed begin with the same completions."""
    rewards = curves.get("reward", {})
    runs = {arm: own for arm, own in endpoint_runs(rows, task).items() if arm in SHOWN}
    kept = {arm: {seed: rewards[row.run_id] for seed, row in own.items() if row.run_id in rewards} for arm, own in runs.items()}
    seeds = set.intersection(*(set(own) for own in kept.values())) if kept else set()
    bands = {arm: band([smoothed(kept[arm][seed]) for seed in sorted(seeds)]) for arm in SHOWN if arm in kept}
    return {arm: own for arm, own in bands.items() if own is not None}


def draw_learning(rows: Sequence[Row], curves: Curves, path: Path) -> None:
    figure, panels = axes(len(TASKS), height=4.6, sharey=True)
    for axis, task in zip(panels, TASKS, strict=True):
        for arm, own in learning_bands(rows, curves, task).items():
            color = STYLES["oracle" if arm == PERFECT else arm].color
            line = "--" if arm == PERFECT else "-"
            axis.plot(own.steps, 100 * own.mean, color=color, linestyle=line, linewidth=1.8, label=SHOWN[arm])
            axis.fill_between(own.steps, 100 * own.low, 100 * own.high, facecolor=to_rgba(color, 0.1))
            for edge in (own.low, own.high):  # five bands over each other are told apart by their edges
                axis.plot(own.steps, 100 * edge, color=color, linestyle=":", linewidth=0.9)
        axis.set_title(task)
        axis.set_xlabel("update")
    panels[0].set_ylabel("right completions of a batch, %")
    legend_below(figure, panels[0])
    save(figure, path)
