"""MLflow's UI really shows what the project logs: nested runs, columns, the comparison's plots, the heat-map."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from mlflow import MlflowClient
from mlflow.entities import Metric, Param
from support.commands import run

from oar_lightning.answers.span import Region
from oar_lightning.inspection.heatmap import HeatmapCompletion, HeatmapToken, render_heatmap

FOLDER = Path(__file__).parents[2] / "reports" / "screenshots"

POINTS = ((0.2, 1.0, 0.61), (0.4, 2.0, 0.72), (0.7, 4.0, 0.58))
"""tau, beta and objective of the three trials."""


class Shown(NamedTuple):
    """The UI over a sweep's parent run and its children."""

    ui: Any
    experiment: str
    parent: str
    children: list[str]


def wait_for_text(ui: Any, *texts: str) -> None:
    for text in texts:
        ui.page.get_by_text(text).first.wait_for()


def heatmap() -> str:
    def token(text: str, weight: float) -> HeatmapToken:
        return HeatmapToken(text, Region.REASONING, score=weight / 10, weight=weight, advantage=weight, entropy=0.1)

    tokens = [token("9", 2.5), token("-", 0.2), token("6", 1.0)]
    return render_heatmap("OarG on chain", "How many apples?", "3", [HeatmapCompletion(tokens, 1.0, 0.7, "3", True)])


@pytest.fixture(scope="module")
def ui(tmp_path_factory: pytest.TempPathFactory, empty_store: Callable[[Path], str]) -> Iterator[Any]:
    """The UI over an empty store, in a browser."""
    sys.path.insert(0, str(FOLDER))
    try:
        pytest.importorskip("playwright", reason="Playwright, which drives the browser, is not installed")
        from browser import find_chromium, open_page
        from mlflow_ui import MlflowUi, serve
    finally:
        sys.path.remove(str(FOLDER))
    executable = find_chromium()
    if executable is None:
        pytest.skip("no Chromium on PATH, which this test looks at MLflow's pages with")
    folder = tmp_path_factory.mktemp("ui")
    store = empty_store(folder)
    with serve(store, folder / "artifacts", folder / "server.log") as address, open_page(executable) as page:
        yield MlflowUi(page, address)


@pytest.fixture(scope="module")
def shown(ui: Any) -> Shown:
    client = MlflowClient(ui.address)
    experiment = client.create_experiment("made_up")
    tags = {"kind": "sweep", "sweep": "tau_beta"}
    parent = client.create_run(experiment, tags=tags, run_name="tau_beta").info.run_id
    children = []
    for trial, (tau, beta, objective) in enumerate(POINTS):
        tags = {"mlflow.parentRunId": parent, "sweep": "tau_beta", "trial": str(trial), "trial_state": "complete"}
        run_id = client.create_run(experiment, tags=tags, run_name=f"trial-{trial}").info.run_id
        metrics = [Metric("reward", 0.4 + step / 100, 1000 * step, step) for step in range(5)]
        metrics.append(Metric("objective", objective, 5000, 4))
        client.log_batch(run_id, metrics, [Param("gate.tau", str(tau)), Param("gate.beta", str(beta))])
        client.log_text(run_id, heatmap(), "heatmaps/chain_step_000004.html")
        client.set_terminated(run_id)
        children.append(run_id)
    client.set_terminated(parent)
    return Shown(ui, experiment, parent, children)


@pytest.mark.slow
def test_the_table_nests_the_trials_and_has_their_parameters_and_metrics(shown: Shown) -> None:
    ui = shown.ui
    ui.open_runs(shown.experiment)
    assert ui.run_names() == ["tau_beta"], "trials are under their sweep, not beside it"
    ui.expand(shown.parent)
    wait_for_text(ui, "trial-0", "trial-1", "trial-2")
    assert sorted(ui.run_names()) == ["tau_beta", "trial-0", "trial-1", "trial-2"]
    ui.choose_columns(["objective", "gate.tau", "gate.beta"])
    cells = [
        tuple(float(ui.cell(run, column)) for column in ("params.`gate.tau`", "params.`gate.beta`", "metrics.`objective`"))
        for run in shown.children
    ]
    assert cells == list(POINTS)


@pytest.mark.slow
def test_the_comparison_plots_all_three_runs(shown: Shown) -> None:
    ui = shown.ui
    ui.open_runs(shown.experiment)
    if "trial-0" not in ui.run_names():  # the table remembers what was expanded
        ui.expand(shown.parent)
    ui.compare(shown.children)
    wait_for_text(ui, "Comparing 3 Runs from 1 Experiment", "gate.tau", "gate.beta", "objective")
    (parallel,) = ui.plotted()
    assert parallel["type"] == "parcoords"
    axes = {axis["label"]: sorted(axis["values"]) for axis in parallel["dimensions"]}
    assert axes["gate.tau"] == [0.2, 0.4, 0.7]
    ui.tab("Scatter Plot").click()
    ui.page.wait_for_function("document.querySelector('.js-plotly-plot')?.data?.[0]?.type?.startsWith('scatter')")
    (scatter,) = ui.plotted()
    assert sorted(map(float, scatter["x"])) in ([0.2, 0.4, 0.7], [1.0, 2.0, 4.0])


@pytest.mark.slow
def test_the_heatmap_is_rendered_with_its_shades(shown: Shown) -> None:
    ui = shown.ui
    frame = ui.artifact(shown.experiment, shown.children[0], "heatmaps/chain_step_000004.html")
    frame.locator(".t").first.wait_for()
    assert "How many apples?" in frame.locator("body").inner_text()
    assert frame.locator(".t").all_inner_texts() == ["9", "-", "6"]
    shades = frame.locator(".t").evaluate_all("all => all.map(e => getComputedStyle(e).backgroundColor)")
    assert shades == ["rgb(240, 140, 40)", "rgb(91, 149, 234)", "rgb(255, 255, 255)"], "orange, blue, white"


@pytest.mark.slow
def test_a_real_run_is_understood_at_a_glance(ui: Any, tmp_path: Path) -> None:
    """Its name, description and datasets; reward and accuracy before all other charts."""
    done = run(tmp_path, "+experiment=smoke", "gate.tau=0.5", f"logger.tracking_uri={ui.address}")
    assert done.code == 0, done.shown
    (experiment,) = MlflowClient(ui.address).search_experiments(filter_string="name = 'oar_lightning'")
    (found,) = MlflowClient(ui.address).search_runs([experiment.experiment_id])
    ui.open_runs(experiment.experiment_id)
    assert ui.run_names() == ["smoke tau=0.5 · seed 0"]
    ui.open_run(experiment.experiment_id, found.info.run_id)
    ui.page.get_by_role("heading", name="smoke tau=0.5 · seed 0").wait_for()
    wait_for_text(ui, "scorer oar_g, gate bilevel (tau 0.5", "python -m oar_lightning +experiment=smoke gate.tau=0.5")
    for dataset in found.inputs.dataset_inputs:
        assert dataset.dataset.name == "chain"
    wait_for_text(ui, f"chain ({found.inputs.dataset_inputs[0].dataset.digest})")
    ui.open_run(experiment.experiment_id, found.info.run_id, "model-metrics")
    assert ui.chart_groups()[:4] == ["Main", "clip_ratio", "completions", "credit"]
    assert {"time", "update"} <= set(ui.chart_groups())
    assert "seconds" not in ui.chart_groups()
    wait_for_text(ui, "(Main/reward)", "(Main/accuracy)", "(Main/chain avg_at_2)")
