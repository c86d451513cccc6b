"""task=report on a made-up store: which runs count, the numbers on the page, and what survives writing it again."""

from __future__ import annotations

import csv
import itertools
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from hydra.errors import HydraException
from support.mlflow_study import Store, curves

from oar_lightning.common.config_check import ConfigError
from oar_lightning.reporting.page import ANSWER
from oar_lightning.reporting.runs import ReportConfig, read_curves, read_runs
from oar_lightning.tracking.history import Resumption

GRPO = {0: 0.60, 1: 0.62, 2: 0.64}
OAR_G = {0: 0.70, 1: 0.68, 2: 0.75}
"""Means 62 and 71; differences by seed 10, 6 and 11, mean 9."""


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory, empty_store: Callable[[Path], str]) -> Store:
    """Three sweeps: `methods` with runs that do not count, `grid` over tau and beta, `stopped` without a finished run."""
    folder = tmp_path_factory.mktemp("store")
    empty_store(folder)
    made = Store(folder)
    methods = made.sweep("methods", "+sweeps=methods", **{"mlflow.note.content": "Does OAR-G beat GRPO?"})
    numbers = itertools.count()
    made.trial(methods, "methods", next(numbers), {"scorer": "oar_g", "seed": 1}, 0.1)  # run again below
    for scorer, results in (("oar_g", OAR_G), ("uniform", GRPO)):
        for seed, result in results.items():
            seconds = 60.0 if scorer == "oar_g" else 40.0
            made.trial(methods, "methods", next(numbers), {"scorer": scorer, "seed": seed}, result, seconds=seconds)
    bad = {
        ("killed", "KILLED"): "",
        ("failed", "FAILED"): "entropy | collapsed",
        ("pruned", "FINISHED"): "below the median",
        ("complete", "RUNNING"): "",  # killed before it could say so
    }
    for (state, status), reason in bad.items():
        swept, tags = {"scorer": "oar_g", "seed": 3}, {"trial_state": state, "trial_reason": reason}
        made.trial(methods, "methods", next(numbers), swept, 0.99, tags=tags, status=status)
    grid = made.sweep("grid", "+sweeps=grid gate.beta=choice(1,2)")
    for number, (tau, beta, seed) in enumerate(itertools.product([0.2, 0.4, 0.7], [1, 2], [0, 1])):
        swept = {"gate.tau": tau, "gate.beta": beta, "seed": seed}
        made.trial(grid, "grid", number, swept, 0.5 + tau / 10 + beta / 100 + seed / 1000)
    stopped = made.sweep("stopped", "+sweeps=stopped")
    made.trial(stopped, "stopped", 0, {"seed": 0}, 0.5, tags={"trial_state": "killed"}, status="KILLED")
    made.sweep("empty", "+sweeps=empty")
    resumed = {"reward": [(1, 0.1), (2, 0.2), (3, 0.3), (2, 0.22), (3, 0.33), (4, 0.44), (5, float("inf")), (6, float("nan"))]}
    made.log("resumed", {"overrides": "+experiment=grpo seed=5", "seed": 5, "experiment": "grpo"}, curves(0.5) | resumed)
    return made


@pytest.fixture
def report(prepared, store: Store, tmp_path: Path):
    """Overrides -> the page's folder, written; the reports lie under this test's folder."""

    def write(*overrides: str) -> Path:
        prepared("task=report", f"logger.tracking_uri={store.uri}", *overrides)()
        (page,) = (p for p in (tmp_path / "reports").glob("*/README.md"))
        return page.parent

    return write


def section(page: str, title: str) -> list[list[str]]:
    """The table of a section, its cells; the header first."""
    text = re.split(rf"^## {title}.*\n", page, flags=re.MULTILINE)[1].split("\n## ")[0]
    lines = [line for line in text.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in lines if not line.startswith("|---")]


def test_the_page_has_means_intervals_and_paired_differences(report) -> None:
    folder = report("sweep=methods")
    assert folder.name == "2023-11-14-methods", "the day on which the sweep began, not today"
    page = (folder / "README.md").read_text()
    header, *rows = section(page, "Results")
    assert header[:5] == ["arm", "n", "objective, % [95 %]", "CPU-seconds of a run", "passes of scoring"]
    # a mean plus and minus 4.3027 standard errors: Student's t with 2 degrees of freedom
    assert rows[0][:5] == ["uniform", "3", "62.00 [57.03, 66.97]", "20", "0.00"]
    assert rows[1][:5] == ["oar_g", "3", "**71.00 [62.04, 79.96]**", "20", "2.50"]
    assert header[5:] == ["ESS-ratio", "top-10 % mass", "entropy, nats", "gradient norm"]
    # of 40 steps the last 4: the wiggle cancels, and entropy falls by (0.9 - 1.5 tau) of 0.3 times 38.5/40
    assert rows[0][5:] == ["0.780", "0.260", f"{0.3 * (1 - 0.3 * 38.5 / 40):.3f}", "0.500"]
    header, *rows = section(page, "Differences from `uniform`")
    assert header == ["arm", "pairs", "difference, points [95 %]", "p", "p, Holm", "smallest possible p"]
    assert rows == [["oar_g", "3", "+9.00 [+2.43, +15.57]", "0.25", "0.25", "0.25"]]
    for expected in (
        "Does OAR-G beat GRPO?",
        "python -m oar_lightning -m +sweeps=methods hydra.sweeper.study_name=methods\n",
        "python -m oar_lightning task=report logger.tracking_uri=sqlite:///",
        "| runs | 6 counted, 1 failed, 1 killed, 1 pruned, 1 repeated, 1 running |",
        "| seeds | 0, 1, 2 |",
        "| revision | 0123456789abcdef |",
        "| versions | python 3.11.7, torch 2.13.0, lightning 2.6.6, transformers 5.23.0 |",
        "| hardware | a CPU, 1 thread |",
        "| training | 40 updates of 2 problems x 8 completions |",
        "| evaluation | chain (held_out): 128 problems x 4 samples |",
        "- Results over tau and beta: tau and beta were not both varied.",
    ):
        assert expected in page


def test_runs_that_do_not_count_are_named_on_the_page_and_in_the_csv(report) -> None:
    folder = report("sweep=methods")
    rows = section((folder / "README.md").read_text(), "Runs that do not count")[1:]
    assert [row[1:] for row in rows] == [
        ["0", "scorer=oar_g", "1", "repeated", "a newer run of the same settings and seed counts"],
        ["7", "scorer=oar_g", "3", "killed", "-"],
        ["8", "scorer=oar_g", "3", "failed", "entropy \\| collapsed"],
        ["9", "scorer=oar_g", "3", "pruned", "below the median"],
        ["10", "scorer=oar_g", "3", "running", "still running, or killed without a trace"],
    ]
    table = list(csv.DictReader((folder / "runs.csv").read_text().splitlines()))
    counted = {(r["scorer"], int(r["seed"])): float(r["objective"]) for r in table if r["state"] == "complete"}
    assert counted == {("oar_g", s): v for s, v in OAR_G.items()} | {("uniform", s): v for s, v in GRPO.items()}
    assert len(table) == 11
    assert [r["arm"] for r in table] == ["uniform"] * 3 + ["oar_g"] * 3 + [""] * 5
    assert float(table[0]["objective_low"]) == pytest.approx(0.57)
    assert table[0]["started"] == "2023-11-14 22:18:20.000"


def test_a_grid_has_its_map_and_no_paired_differences_until_a_baseline_is_named(report) -> None:
    folder = report("sweep=grid")
    page = (folder / "README.md").read_text()
    rows = section(page, "Results")[1:]
    means = {(t, b): 100 * (0.5 + t / 10 + b / 100 + 0.0005) for t in (0.2, 0.4, 0.7) for b in (1, 2)}
    assert [row[0] for row in rows] == [f"tau={t} beta={b}" for t, b in means]
    shown = [float(row[2].strip("*").split()[0]) for row in rows]
    assert shown == pytest.approx([*means.values()], abs=0.006)
    assert "report.baseline=<arm>" in page
    assert "python -m oar_lightning -m +sweeps=grid 'gate.beta=choice(1,2)' hydra.sweeper.study_name=grid\n" in page, (
        "it can be pasted into a shell"
    )
    assert "How does objective depend on `gate.tau` and `gate.beta`?" in page
    drawn = {path.stem for path in folder.glob("*.png")}
    assert drawn == {"tau_beta", "learning_curves", "pareto", "responses", "entropy", "credit_shape"}
    assert drawn == set(re.findall(r"\]\((\w+)\.png\)", page))
    page = (report("sweep=grid", "report.baseline='tau=0.4 beta=2'") / "README.md").read_text()
    rows = section(page, "Differences from `tau=0.4 beta=2`")[1:]
    # two seeds with the same difference: no interval, and as many patterns reach it as there are equal ones
    expected = {f"tau={t} beta={b}": m - means[0.4, 2] for (t, b), m in means.items() if (t, b) != (0.4, 2)}
    cells = {name: ["2", f"{d:+.2f} (n = 2)", "0.5", "1", "0.5"] for name, d in expected.items()}
    assert {row[0]: row[1:] for row in rows} == cells


def test_writing_again_changes_no_byte_and_keeps_hand_written_text(report, tmp_path: Path) -> None:
    index = tmp_path / "reports" / "README.md"
    index.parent.mkdir()
    index.write_text("# Studies\n\n| study | question |\n|---|---|\n| [old](old/README.md) | An old one? |\n")
    folder = report("sweep=methods")
    page = folder / "README.md"
    text = page.read_text()
    findings = "OAR-G wins by *9 points*.\n\n| a | b |\n|---|---|\n| 1 | \\2 |"
    text = re.sub(r"(prose: findings -->\n).*?(\n<!-- /prose)", lambda m: m[1] + findings + m[2], text, flags=re.DOTALL)
    assert "**Answer.**" in text
    answer = "Not seen,\n[here](../other/README.md)."
    text = text.replace(ANSWER, answer)
    text = text.replace("Does OAR-G beat GRPO?", "Is OAR-G\nbetter | worse?\n\nMore about it.")
    more = "\n<!-- prose: limits -->\nOne task only.\n<!-- /prose -->\n"
    beside = "\n<!-- prose: learning_curves -->\nThey cross.\n<!-- /prose -->\n"
    page.write_text(text.replace("62.00 [57.03, 66.97]", "99.00") + beside + more)
    report("sweep=methods")
    again = page.read_text()
    assert "62.00 [57.03, 66.97]" in again, "what is generated is written anew"
    for kept in (findings, answer, "Is OAR-G\nbetter | worse?\n\nMore about it.", more.strip()):
        assert again.count(kept) == 1
    learning_curves = again.split("## Learning curves")[1].split("\n## ")[0]
    assert "They cross." in learning_curves
    first = {path.name: path.read_bytes() for path in [*folder.iterdir(), index]}
    report("sweep=methods")
    assert {path.name: path.read_bytes() for path in [*folder.iterdir(), index]} == first
    listed = index.read_text()
    assert "| [old](old/README.md) | An old one? |" in listed
    cells = "Is OAR-G better \\| worse? | Not seen, [here](other/README.md)."
    assert f"| [2023-11-14-methods](2023-11-14-methods/README.md) | {cells} |" in listed


def test_a_page_that_no_report_wrote_is_left_alone(report, tmp_path: Path) -> None:
    page = tmp_path / "reports" / "2023-11-14-methods" / "README.md"
    page.parent.mkdir(parents=True)
    page.write_text("mine")
    with pytest.raises(ConfigError, match="was not written by task=report and is left alone; set report"):
        report("sweep=methods")
    assert page.read_text() == "mine"
    assert [p.name for p in page.parent.iterdir()] == ["README.md"]


def test_runs_can_be_given_by_id_or_filter(report, store: Store) -> None:
    (run,) = store.client.search_runs([store.experiment], "tags.overrides LIKE '%grpo%'")
    folder = report(f"report.runs=[{run.info.run_id}]", "report.name=one")
    page = (folder / "README.md").read_text()
    assert folder.name.endswith("-one")
    assert "python -m oar_lightning +experiment=grpo seed=5 logger.experiment_name=one\n" in page
    assert "python -m oar_lightning task=report logger.experiment_name=one" in page
    assert section(page, "Results")[1][:3] == ["grpo", "1", "50.00 *[47.00, 53.00]*"], "the run's own interval in italics"
    filtered = report("report.filter='tags.seed = \"5\"'", "report.name=one")
    assert filtered == folder
    assert section((folder / "README.md").read_text(), "Results") == section(page, "Results")


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["sweep=method"], "sweep=method: no such sweep in experiment oar_lightning; there are: empty, grid, methods, stopped"),
        (["sweep=stopped"], "stopped has no finished run (1 killed)"),
        (["sweep=empty"], "sweep=empty has no trials yet"),
        (["sweep=methods", "report.baseline=grpo"], "report.baseline=grpo: no such arm; the arms are: oar_g, uniform"),
        (["sweep=methods", "report.metric=accuracy"], "report.metric=accuracy: no finished run of methods has it"),
        (
            [],
            "task=report needs one of sweep=<name>, report.runs=[<run id>,...], report.filter=<MLflow filter> and report.csv=",
        ),
        (["sweep=methods", "report.runs=[a]"], "got sweep and runs"),
        (["report.runs=[a]"], "report.runs needs report.name=<name> as well"),
        (["report.runs=[a]", "report.name=x"], "report.runs names a: Run with id=a not found"),
        (["report.runs=[a]", "report.name=x/y"], "report.name=x/y names one folder of reports"),
        (["report.filter='status = 3'", "report.name=x"], "report.filter=status = 3: "),
        (["report.filter='tags.seed = \"77\"'", "report.name=x"], 'report.filter=tags.seed = "77" matches no run'),
        (
            ["sweep=methods", "logger.experiment_name=other"],
            "no such experiment in this store; there are: Default, oar",
        ),
        (["sweep=methods", "logger.tracking_uri=sqlite:////nowhere/x.db"], "sqlite:////nowhere/x.db: no such database"),
        (
            ["sweep=methods", "logger.tracking_uri=http://127.0.0.1:9"],
            "logger.tracking_uri=http://127.0.0.1:9 cannot be read (",
        ),
        (["sweep=methods", "logger=none"], "task=report reads MLflow, and logger=none has no store"),
        (["sweep=methods", "report.folder=/proc/x"], "report.folder=/proc/x"),
        (["sweep=7"], "report.sweep must be a text or null, got 7"),
    ],
)
def test_errors_name_key_value_and_remedy(prepared, store: Store, tmp_path: Path, overrides: list[str], message: str) -> None:
    given = any(override.startswith(("logger=", "logger.tracking_uri=")) for override in overrides)
    with pytest.raises((ConfigError, HydraException)) as caught:
        prepared("task=report", *([] if given else [f"logger.tracking_uri={store.uri}"]), *overrides)
    error = caught.value.__cause__ if isinstance(caught.value, HydraException) else caught.value
    assert message in str(error)
    assert not (tmp_path / "reports").exists()


def test_steps_that_a_resumed_run_logged_again_count_once_with_the_later_value(store: Store) -> None:
    config = ReportConfig(filter="tags.seed = '5'", name="x")
    _, runs = read_runs(store.client, "oar_lightning", config)
    found = read_curves(store.client, runs, ["reward", "no such metric"])
    curve = found["reward"][runs[0].run_id]
    assert dict(zip(curve.steps.tolist(), curve.values.tolist(), strict=True)) == {1: 0.1, 2: 0.22, 3: 0.33, 4: 0.44}
    assert [*found] == ["reward"]


def test_steps_after_the_checkpoint_that_a_run_went_on_from_do_not_count(store: Store) -> None:
    points = {"reward": [(1, 0.1), (2, 0.2), (3, 0.3), (2, 0.22)], "time/total_s": [(2, 20.0), (3, 30.0), (3, 31.0), (2, 25.0)]}
    run_id = store.log("cut back", {"seed": 6}, points, status="KILLED")
    resumed = store.client.get_run(run_id).info.start_time + 3000  # before its fourth point, at step 1
    store.client.set_tag(run_id, *Resumption(resumed, 1).tag().popitem())
    _, runs = read_runs(store.client, "oar_lightning", ReportConfig(runs=(run_id,), name="x"))
    curve = read_curves(store.client, runs, ["reward"])["reward"][run_id]
    assert dict(zip(curve.steps.tolist(), curve.values.tolist(), strict=True)) == {1: 0.1, 2: 0.22}
    assert store.client.get_run(run_id).data.metrics["reward"] == 0.3, "MLflow shows the largest step"
    assert runs[0].metrics["reward"] == 0.22
    assert runs[0].duration_s == runs[0].metrics["time/total_s"] == 25.0
