"""What the untrained policies solve at lower temperatures, which costs nothing.

python reports/settle/temperatures.py      # writes temperatures.csv, a table in README.md: minutes
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

from mlflow import MlflowClient
from records import SETS
from rules import GREEDY_TASK

from oar_lightning.common.markdown import markdown
from oar_lightning.reporting.rows import read_rows, write_rows

HERE = Path(__file__).parent
TASKS = (GREEDY_TASK, "asides")
TEMPERATURES = (1.0, 0.7, 0.5, 0.3)
GREEDILY = 0.0


class Untrained(NamedTuple):
    """The accuracy of a task's policy at a temperature, 0 for greedy decoding, with its 95 % interval, 0 to 1."""

    task: str
    temperature: float
    accuracy: float
    low: float
    high: float


def command(task: str, temperature: float) -> list[str]:
    """The evaluation that the study makes before training, at this temperature; at 1 with greedy decoding."""
    words = ["task=evaluate", f"+variant={task}", f"rollout.temperature={temperature}", "evaluation.problems=1024"]
    greedy = f"evaluation.greedy={'true' if temperature == TEMPERATURES[0] else 'false'}"
    return [sys.executable, "-m", "oar_lightning", *words, greedy, "evaluation.samples=4"]


def measured(task: str, temperature: float) -> list[Untrained]:
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run(command(task, temperature), cwd=folder, check=True)
        client = MlflowClient(f"sqlite:///{folder}/mlflow.db")
        experiments = [experiment.experiment_id for experiment in client.search_experiments()]
        (run,) = client.search_runs(experiments)
    kinds = {"avg_at_4": temperature, "greedy": GREEDILY}
    return [
        Untrained(task, at, *(run.data.metrics[f"eval/{SETS[task]}/{kind}{end}"] for end in ("", "_low", "_high")))
        for kind, at in kinds.items()
        if f"eval/{SETS[task]}/{kind}" in run.data.metrics
    ]


def table() -> str:
    """Of temperatures.csv."""
    lines = [["task", *(f"at {at:g}, %" for at in TEMPERATURES), "greedily, %"]]
    rows = read_rows(Untrained, HERE / "temperatures.csv")
    for task in TASKS:
        found = {row.temperature: [f"{100 * number:.1f}" for number in row[2:]] for row in rows if row.task == task}
        cells = [found[at] for at in (*TEMPERATURES, GREEDILY)]
        lines.append([f"`{task}`", *(f"{mean} [{low}, {high}]" for mean, low, high in cells)])
    return markdown(lines)


def main() -> None:
    write_rows(
        Untrained, HERE / "temperatures.csv", [row for task in TASKS for at in TEMPERATURES for row in measured(task, at)]
    )


if __name__ == "__main__":
    main()
