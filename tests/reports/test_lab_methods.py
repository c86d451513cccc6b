"""The lab of all methods: that none is forgotten, that each is what its experiment trains with, and the tables by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from omegaconf import OmegaConf
from support.composing import composed
from support.study_scripts import load_script

from oar_lightning.common.paths import conf_dir
from oar_lightning.lab.agreement import auroc
from oar_lightning.lab.study import experiment_part

methods = load_script("lab_methods", "methods")
labs = load_script("lab_methods", "labs")
tables = load_script("lab_methods", "lab_tables")
ROWS = [name for family in methods.FAMILIES.values() for name in family]


def files(group: str) -> list[str]:
    return sorted(path.stem for path in (conf_dir() / group).glob("*.yaml"))


def test_each_experiment_is_a_row_or_is_left_out_with_a_reason() -> None:
    assert sorted([*ROWS, *methods.LEFT_OUT]) == files("experiment")


def test_each_scorer_is_that_of_a_row_or_is_left_out_with_a_reason() -> None:
    of_rows = {experiment_part(name)[0].get("scorer", "uniform") for name in ROWS}
    of_controls = {"shuffled", "inverted", "position"}
    assert of_controls - {"position"} <= {*methods.FURTHER}
    assert sorted({*of_rows, *of_controls, *methods.LEFT_OUT_SCORERS}) == files("scorer")


def test_the_labs_hold_all_rows() -> None:
    found = labs.labs("asides")
    words = [word for lab in found.values() for word in lab]
    added = {word.split(".")[2].removeprefix("experiment_") for word in words if word.startswith("+scorer@")}
    assert added == {*ROWS, *(name for name, own in methods.FURTHER.items() if own)}
    removed = {word.removeprefix("~lab.estimators.") for word in found["all"] if word[0] == "~"}
    assert removed <= {*ROWS}, "what is left out of the lab's own list an experiment replaces"


def test_the_lab_of_hints_has_the_methods_that_tell_one() -> None:
    words = " ".join(word for lab in labs.labs(methods.HINTED).values() for word in lab)
    for name in methods.READS_HINTS:
        assert f"experiment_{name}." in words
    for name in ("rlsd", "serl"):
        assert f"lab.estimators.experiment_{name}.scorer.hint=correct_sibling" in words
        assert "correct_sibling" not in " ".join(labs.labs("graph")["all"])


def hold_as_composed(lab: str, names: list[str]) -> None:
    """Scorer, gate and loss of estimators are those of the runs of their experiments, but for who reads hints."""
    held = composed("task=lab", *labs.labs("asides")[lab])
    for name in names:
        trained = composed("+variant=asides", f"+experiment={name}", *teacher(name))
        own = held.lab.estimators[labs.name_in_lab(name)]
        assert plain(own) == {"scorer": plain(trained.scorer), "gate": plain(trained.gate)}, name
        assert held.loss.reduction == trained.loss.reduction, name


@pytest.mark.usefixtures("hydra_conf")
def test_an_estimator_is_what_its_experiment_trains_with() -> None:
    hold_as_composed("rlcsd", ["rlcsd"])


@pytest.mark.slow
@pytest.mark.usefixtures("hydra_conf")
@pytest.mark.parametrize(("lab", "apart"), [("all", ["rlcsd", "spro"]), ("spro", None)])
def test_all_estimators_are_what_their_experiments_train_with(lab: str, apart: list[str] | None) -> None:
    hold_as_composed(lab, ["spro"] if apart is None else [name for name in ROWS if name not in apart])


def teacher(name: str) -> list[str]:
    return ["scorer/teacher=policy"] if name in methods.READS_HINTS else []


def plain(node: Any) -> Any:
    return OmegaConf.to_container(node, resolve=True)


def test_a_star_is_a_p_value_adjusted_over_the_columns() -> None:
    """Of eight problems all speak for `good` in one column: p is 2 / 256, times four columns and two estimators."""
    names = ("is_digit", "experiment_good", "poor")

    def of(gain: float) -> dict[str, Any]:
        values = {name: [0.5 + gain * (name == "experiment_good")] * 8 for name in names}
        return {"values": values, "means": {n: {"mean": v[0], "low": None, "high": None, "n": 8} for n, v in values.items()}}

    results = {
        "completions": [{"problem": problem, "correct": problem % 2 == 0} for problem in range(8)],
        "tokens": {"reasoning": 80, "free": 40},
        "truths": {"first_error": {"completions": 4}, "monte_carlo": {}},
        "measures": {key: of(0.25 if key == "monte_carlo.auroc" else 0.0) for key in tables.COLUMNS},
        "gradients": {name: {tables.COSINE: {"mean": 0.5, "low": 0.25, "high": 0.75, "n": 8}} for name in names},
        "estimators": {name: {"seconds": 1.0, "forward_equivalents": None} for name in names},
    }
    found = labs.kept(results)
    assert (found["completions"], found["right"], found["problems"]) == (8, 4, 8)
    good = found["estimators"]["good"]
    assert good["monte_carlo.auroc"]["p_holm"] == pytest.approx(2 / 256 * 8)
    assert good["monte_carlo.sign"]["p_holm"] == 1.0
    good["monte_carlo.auroc"]["p_holm"] /= 2
    assert tables.line("good", "control", good) == [
        "`good`",
        "control",
        "0.50",
        "0.50",
        "0.75 *",
        "0.50",
        "0.50 [0.25, 0.75]",
        "1.0",
        "",
    ]


def test_the_committed_tables_are_those_of_the_committed_labs() -> None:
    page = (tables.HERE / "README.md").read_text(encoding="utf-8")
    assert tables.page() in page, "python reports/lab_methods/labs.py"


def test_what_knowing_the_free_tokens_alone_is_worth_by_simulation() -> None:
    rng = np.random.default_rng(0)
    free = np.arange(60_000) < 20_000
    decisive = np.arange(60_000) < 2_000
    area = auroc(np.where(free, rng.random(60_000), 0.0), decisive)
    assert tables.by_freedom({"free": 20_000, "reasoning": 60_000}, 2_000) == pytest.approx(area, abs=0.005)
