"""Tables of accuracies on the console, in percent with their 95 % intervals."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from oar_lightning.common.tables import ConsoleTable


def before_after_table(eval_sets: Mapping[str, tuple[Mapping[str, float], Mapping[str, float]]]) -> ConsoleTable:
    """Accuracies before and after training."""
    rows = [
        [name, metric, percent(before, metric), percent(after, metric), f"{100 * (after[metric] - before[metric]):+.1f} points"]
        for name, (before, after) in eval_sets.items()
        for metric in accuracy_names(after)
        if metric in before
    ]
    title = "Held-out accuracy, before and after"
    return ConsoleTable(title, ("eval set", "metric", "before", "after", "difference"), rows, keys=2)


def accuracy_table(metrics: Mapping[str, Mapping[str, float]], problems: Mapping[str, int]) -> ConsoleTable:
    """Accuracies; then how many samples had an answer and how many were cut off."""
    rows = [
        [name, metric, str(problems[name]), percent(row, metric)]
        for name, row in metrics.items()
        for metric in (*accuracy_names(row), "answered", "truncated")
    ]
    title = "Accuracy [95 % interval over problems]"
    return ConsoleTable(title, ("eval set", "metric", "problems", "value"), rows, keys=2)


def level_table(metrics: Mapping[str, Mapping[str, float]]) -> ConsoleTable:
    """Sampled accuracy by difficulty; without rows where no problem has one."""
    rows = []
    for name, row in metrics.items():
        for key in (k for k in row if k.startswith("level_") and k.endswith("/problems")):
            level = key.removesuffix("/problems")
            (accuracy,) = (k for k in row if k.startswith(f"{level}/avg_at_") and not k.endswith(("_low", "_high")))
            rows.append([name, level.removeprefix("level_"), f"{row[key]:.0f}", percent(row, accuracy)])
    return ConsoleTable("Sampled accuracy by level", ("eval set", "level", "problems", "accuracy"), rows, keys=2)


def accuracy_names(metrics: Iterable[str]) -> list[str]:
    """The accuracies among an evaluation's metrics. Left out: intervals, levels, counts, and pass@1, which is avg@k."""
    names = [m for m in metrics if m.startswith(("avg_at_", "pass_at_", "maj_at_")) or m == "greedy"]
    return [m for m in names if m != "pass_at_1" and not m.endswith(("_low", "_high"))]


def percent(row: Mapping[str, float], metric: str) -> str:
    """A share in percent with its interval where there is one."""
    interval = ""
    if f"{metric}_low" in row:
        interval = f" [{100 * row[f'{metric}_low']:.1f}, {100 * row[f'{metric}_high']:.1f}]"
    return f"{100 * row[metric]:.1f} %{interval}"
