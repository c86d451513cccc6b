"""Makes the pictures of MLflow's UI: `python reports/screenshots/make.py [folder]` (two minutes; needs Chromium).

Three short trainings with different tau and beta under one parent run, logged to a store in a temporary folder, or in the given
one, whose runs are used again where there are some; then the pages as a user would open them.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

from browser import find_chromium, open_page, save_picture, value_of, wait_for_text, wait_still
from mlflow import MlflowClient
from mlflow_ui import MlflowUi, serve
from rich.console import Console

HERE = Path(__file__).parent
SETTINGS = ((0.2, 1.0), (0.4, 2.0), (0.7, 4.0))
"""tau and beta of the three runs."""
STEPS = 8
COLUMNS = ("Dataset", "Source", "Models", "eval/chain/avg_at_2", "reward", "credit/ess_ratio", "gate.beta", "gate.tau")
"""What the table is to show; the first three are ticked at first, and so unticked."""


def train(folder: Path, address: str) -> None:
    """Train three policies under one parent run."""
    client = MlflowClient(address)
    experiment = client.create_experiment("oar_lightning")
    parent = client.create_run(experiment, tags={"kind": "sweep", "sweep": "tau_beta"}, run_name="tau_beta").info.run_id
    for trial, (tau, beta) in enumerate(SETTINGS):
        tags = f"{{mlflow.parentRunId: {parent}, sweep: tau_beta, trial: {trial}}}"
        overrides = [f"gate.tau={tau}", f"gate.beta={beta}", f"trainer.max_steps={STEPS}"]
        overrides += [f"logger.run_name='#{trial} tau={tau:g} beta={beta:g} · seed 0'"]  # as a sweep names its trials
        overrides += [f"logger.tracking_uri={address}", f"+logger.tags={tags}"]
        command = [sys.executable, "-m", "oar_lightning", "+experiment=smoke", *overrides]
        subprocess.run(command, cwd=folder, check=True, stdout=subprocess.DEVNULL)
    client.set_terminated(parent)


def find(address: str) -> tuple[str, str, list[str]]:
    """The experiment, the parent run and its children."""
    client = MlflowClient(address)
    experiment = client.get_experiment_by_name("oar_lightning").experiment_id
    (parent,) = client.search_runs([experiment], "tags.kind = 'sweep'")
    nested = f"tags.`mlflow.parentRunId` = '{parent.info.run_id}'"
    children = client.search_runs([experiment], nested, order_by=["start_time ASC"])
    return experiment, parent.info.run_id, [child.info.run_id for child in children]


def take(ui: MlflowUi, experiment: str, parent: str, children: list[str]) -> None:
    """Open each page, wait for what it is to show, and take its picture."""
    ui.open_runs(experiment)
    ui.expand(parent)
    ui.choose_columns(COLUMNS)
    for child in children:
        ui.cell(child, "params.`gate.tau`")
    save_picture(ui.page, HERE / "runs.png")
    ui.compare(children)
    ui.plotted()
    wait_still(ui.page)
    save_picture(ui.page, HERE / "compare.png")
    ui.open_run(experiment, children[1])
    wait_for_text(ui.page, "Description", "Datasets")
    wait_still(ui.page)
    save_picture(ui.page, HERE / "run.png", height=560)  # the tags below hold paths of this machine
    ui.open_run(experiment, children[1], "model-metrics")
    ui.chart_groups()
    wait_still(ui.page)
    save_picture(ui.page, HERE / "metrics.png")
    frame = ui.artifact(experiment, children[1], f"heatmaps/chain_step_{STEPS:06d}.html")
    value_of(frame, "document.querySelectorAll('.t').length")
    wait_still(ui.page)
    save_picture(ui.page, HERE / "heatmap.png")


def main() -> None:
    executable = find_chromium()
    if executable is None:
        sys.exit("no Chromium on PATH; install one, e.g. apt-get install chromium")
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(sys.argv[1] if len(sys.argv) > 1 else temporary).resolve()
        trained = (folder / "mlflow.db").exists()
        with serve(f"sqlite:///{folder}/mlflow.db", folder / "artifacts", folder / "server.log") as address:
            if not trained:
                train(folder, address)
            with open_page(executable, 1400, 860) as page:
                take(MlflowUi(page, address), *find(address))
    console = Console()
    for picture in sorted(HERE.glob("*.png")):
        console.print(f"{picture} {picture.stat().st_size / 1000:.0f} kB")


if __name__ == "__main__":
    main()
