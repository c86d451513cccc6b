"""What figures show is read back from them and held against numbers worked out here."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator, Mapping
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import pytest
from matplotlib.figure import Figure
from matplotlib.text import Text
from scipy.stats import t
from support.run_records import straight, trial

from oar_lightning.reporting.figures import FIGURES, Curves, Drawing, LeftOut
from oar_lightning.reporting.method_style import GREY, STYLES
from oar_lightning.reporting.runs import Curve
from oar_lightning.reporting.series import PALE, arm_colors, study_series
from oar_lightning.reporting.study import Study, make_study

NONE: Mapping[str, Any] = {}


@pytest.fixture(autouse=True)
def _closed() -> Iterator[None]:
    yield
    plt.close("all")


def drawn(name: str, study: Study, curves: Curves = NONE) -> Figure:
    found = FIGURES[name](study, curves)
    assert isinstance(found, Drawing), found
    figure = found.figure
    figure.canvas.draw()
    for axis in figure.axes:  # what is written can be read
        texts = [*axis.get_xticklabels(), *axis.texts]
        assert not overlapping([text for text in texts if text.get_text() and text.get_visible()]), axis
    return figure


def overlapping(texts: list[Text]) -> list[tuple[str, str]]:
    boxes = [(text.get_text(), text.get_window_extent()) for text in texts]
    return [(a, b) for (a, one), (b, other) in itertools.combinations(boxes, 2) if one.overlaps(other)]


def reason(name: str, study: Study, curves: Curves = NONE) -> str:
    found = FIGURES[name](study, curves)
    assert isinstance(found, LeftOut)
    return found.reason


def grid(taus: list[float], betas: list[float], seeds: int = 2) -> Study:
    """Results rise with tau, a little with beta, and less with the seed."""
    cells = [{"gate.tau": t, "gate.beta": b, "seed": s} for t, b, s in itertools.product(taus, betas, range(seeds))]
    return make_study("g", [], [trial(c["gate.tau"] + c["gate.beta"] / 100 + c["seed"] / 500, c) for c in cells])


def methods(results: dict[str, list[float]], seconds: Mapping[str, float] = NONE) -> Study:
    runs = [
        trial(value, {"scorer": name, "seed": seed}, duration_s=seconds.get(name, 30.0))
        for name, values in results.items()
        for seed, value in enumerate(values)
    ]
    return make_study("m", [], runs)


def test_learning_curves_are_means_with_bands() -> None:
    study = methods({"uniform": [0.5, 0.7], "oar_g": [0.6, 0.8]})
    ends = {run.run_id: run.metrics["objective"] for run in study.runs}
    found = {k: v for run in study.runs for k, v in straight(run, ends[run.run_id]).items()}
    figure = drawn("learning_curves", study, {"eval/chain/avg_at_4": found})
    lines = {line.get_label(): line for line in figure.axes[0].lines}
    assert [*lines] == ["uniform (2)", "oar_g (2)"]
    assert lines["uniform (2)"].get_xdata().tolist() == [0, 10, 20]
    assert lines["uniform (2)"].get_ydata() == pytest.approx([40, 50, 60])
    band = figure.axes[0].collections[1].get_paths()[0].vertices
    assert (band[:, 1].min(), band[:, 1].max()) == pytest.approx((40, 80))
    assert figure.axes[0].get_ylabel() == "sampled accuracy, %", "no run tells on what"
    assert reason("learning_curves", study, {}).startswith("no run was evaluated more than once (eval/*/avg_at_*)")


def test_evaluations_are_drawn_as_they_are_however_many() -> None:
    study = methods({"uniform": [0.5, 0.5]})
    found = {run.run_id: Curve(np.arange(41.0), np.eye(41)[40]) for run in study.runs}
    (axis,) = (axis for axis in drawn("learning_curves", study, {"eval/chain/avg_at_4": found}).axes if axis.get_visible())
    assert axis.lines[0].get_ydata()[-2:].tolist() == [0.0, 100.0]


def test_bands_that_would_overlap_have_a_panel_each_with_the_baseline() -> None:
    study = methods({"uniform": [0.5, 0.6], **{f"m{i}": [0.5 + i / 50, 0.6] for i in range(4)}})
    curves = {k: v for run in study.runs for k, v in straight(run, run.metrics["objective"]).items()}
    axes = [axis for axis in drawn("learning_curves", study, {"eval/chain/avg_at_4": curves}).axes if axis.get_visible()]
    assert [axis.get_title() for axis in axes] == ["m0", "m1", "m2", "m3"]
    assert all([line.get_label() for line in axis.lines] == ["uniform (2)", f"{axis.get_title()} (2)"] for axis in axes)
    assert len({axis.get_ylim() for axis in axes}) == 1


def test_an_axis_says_whether_problems_are_new() -> None:
    for split, expected in (("held_out", "accuracy on new problems, %"), ("train", "accuracy on problems as in training, %")):
        params = {"data.evaluation.chain.split": split, "data.train.split": "train"}
        runs = [trial(value, {"scorer": name}, params=params) for name, value in (("uniform", 0.4), ("oar_g", 0.5))]
        assert drawn("arms", make_study("x", [], runs)).axes[0].get_xlabel() == expected


def test_the_map_holds_means_and_counts_and_frames_the_highest() -> None:
    figure = drawn("tau_beta", grid([0.2, 0.5, 0.3], [1, 4]))
    axis = figure.axes[0]
    expected = [[f"{100 * (tau + beta / 100 + 0.001):.3g}\n(2)" for tau in (0.2, 0.3, 0.5)] for beta in (1, 4)]
    assert [text.get_text() for text in axis.texts] == [*itertools.chain(*expected)]
    assert axis.patches[0].get_xy() == (1.5, 0.5)
    assert [label.get_text() for label in axis.get_xticklabels()] == ["0.2\n[22.6]", "0.3\n[32.6]", "0.5\n[52.6]"]
    assert [label.get_text() for label in axis.get_yticklabels()] == ["1 [34.4]", "4 [37.4]"]


def test_the_map_of_the_paper_is_readable_and_shows_missing_cells() -> None:
    study = grid([0, 0.2, 0.3, 0.4, 0.5, 0.7, 0.9, 1], [1, 2, 4])
    missing = next(arm for arm in study.arms if arm.label == "tau=0.4 beta=2")
    without = make_study("g", [], [run for run in study.runs if run not in missing.runs])
    texts = [text.get_text() for text in drawn("tau_beta", without).axes[0].texts]
    assert len(texts) == 24
    assert texts.count("-") == 1


def test_scattered_trials_are_points() -> None:
    rng = np.random.default_rng(0)
    draws = rng.uniform(size=(20, 3)).tolist()
    runs = [trial(result, {"gate.tau": tau, "gate.beta": beta}) for result, tau, beta in draws]
    axis = drawn("tau_beta", make_study("g", [], runs)).axes[0]
    assert len(axis.collections[0].get_offsets()) == 20
    best = max(draws)
    assert (axis.lines[0].get_xdata()[0], axis.lines[0].get_ydata()[0]) == pytest.approx(tuple(best[1:]), rel=1e-5)


def test_diamonds_are_means_and_the_other_panel_paired_differences() -> None:
    figure = drawn("arms", methods({"uniform": [0.5, 0.7], "oar_g": [0.6, 0.9], "oar_p_approximate": [0.4, 0.4]}))
    left, right = figure.axes
    assert [container.lines[0].get_xdata()[0] for container in left.containers] == pytest.approx([60, 75, 40])
    assert left.get_xlim() == pytest.approx((40 - 12.5, 90 + 12.5)), "the runs fill the axis"
    assert [label.get_text() for label in left.get_yticklabels()] == ["uniform (2)", "oar_g (2)", "oar_p_approximate (2)"]
    middles = [container.lines[0].get_xdata()[0] for container in right.containers]
    assert middles == pytest.approx([15, -20])
    assert reason("arms", methods({"a": [0.5]})) == "there is one arm only"
    assert reason("arms", grid([0.1, 0.2], [1, 2])).startswith("it is for named arms")


def test_what_nothing_beats_is_a_diamond() -> None:
    study = methods({"uniform": [0.5], "oar_g": [0.6], "oar_p": [0.55]}, {"uniform": 10, "oar_g": 20, "oar_p": 100})
    seconds = [dataclasses.replace(run, metrics={**run.metrics, "time/total_cpu_s": run.duration_s}) for run in study.runs]
    study = make_study("m", [], seconds)
    points = {container.get_label(): container.lines[0] for container in drawn("pareto", study).axes[0].containers}
    markers = {name: line.get_marker() for name, line in points.items()}
    assert markers == {"uniform (1)": "D", "oar_g (1)": "D", "oar_p (1)": "o"}
    assert [line.get_xdata()[0] for line in points.values()] == [10, 20, 100]
    assert reason("pareto", methods({"a": [0.1], "b": [0.2]})).startswith("no run recorded its processor time")


def test_accuracy_is_drawn_against_passes_of_scoring_too() -> None:
    study = methods({"uniform": [0.5, 0.6], "oar_g": [0.6, 0.7]})
    passes = {run.run_id: Curve(np.arange(10.0), np.full(10, 2.5)) for run in study.arms[1].runs}
    (axis,) = drawn("pareto", study, {"credit/forward_equivalents": passes}).axes
    assert [container.lines[0].get_xdata()[0] for container in axis.containers] == [0, 2.5], "uniform credit makes none"
    assert axis.get_xlabel() == "passes of scoring a step (mean)"


def test_entropy_against_tau_is_the_mean_of_the_last_tenth() -> None:
    study = grid([0.1, 0.5], [2.0, 4.0])
    steps = np.arange(20.0)
    curves = {run.run_id: Curve(steps, np.where(steps < 18, 9.0, float(run.tags["trial"]))) for run in study.runs}
    _, right = drawn("entropy", study, {"entropy": curves}).axes
    lines = {line.get_label(): line for line in right.lines}
    trials = {arm.label: np.mean([float(run.tags["trial"]) for run in arm.runs]) for arm in study.arms}
    for beta in ("2", "4"):
        assert lines[f"beta={beta}"].get_xdata().tolist() == [0.1, 0.5]
        assert lines[f"beta={beta}"].get_ydata() == pytest.approx([trials[f"tau={tau} beta={beta}"] for tau in (0.1, 0.5)])
    assert reason("entropy", study).startswith("no run logged entropy")


def test_a_level_without_entropies_has_no_points_in_the_entropy_figure() -> None:
    study = grid([0.2, 0.4], [1.0, 2.0])
    beta = study.place("gate.beta")
    assert beta is not None
    known = {
        run.run_id: Curve(np.arange(10.0), np.full(10, 0.5))
        for arm in study.arms
        if float(arm.levels[beta]) == 1.0
        for run in arm.runs
    }
    assert known
    panel = drawn("entropy", study, {"entropy": known}).axes[-1]
    heights = [y for line in panel.lines for y in line.get_ydata()]
    assert heights
    assert all(y == 0.5 for y in heights)


def test_the_shape_of_credit_needs_both_metrics() -> None:
    study = methods({"uniform": [0.5], "oar_g": [0.6]})
    curves = {run.run_id: Curve(np.arange(3.0), np.full(3, 0.7)) for run in study.runs}
    assert len(drawn("credit_shape", study, {"credit/ess_ratio": curves, "credit/top10_mass": curves}).axes) == 2
    assert (
        reason("credit_shape", study, {"credit/ess_ratio": curves})
        == "no run logged credit/top10_mass, or its curve was not kept"
    )


def test_responses_have_a_panel_for_each_number_and_log_scales_where_levels_are_log_spaced() -> None:
    runs = [
        trial(draws / 100, {"scorer.noise_std": noise, "scorer.num_draws": draws, "scorer": name})
        for noise, draws, name in itertools.product([1e-4, 1e-3, 1e-2, 1e-1], [1, 2, 4], ["a", "b"])
    ]
    left, right = drawn("responses", make_study("n", [], runs)).axes
    assert (left.get_xlabel(), left.get_xscale()) == ("scorer.noise_std", "log")
    assert (right.get_xlabel(), right.get_xscale()) == ("scorer.num_draws", "linear")
    lines = {line.get_label(): line for line in right.lines}
    assert lines["noise_std=0.001 b"].get_ydata() == pytest.approx([1, 2, 4]), "no pooling over other settings"
    assert reason("responses", methods({"a": [0.1], "b": [0.2]})) == "no setting was given more than two numbers"


def test_every_run_is_a_dot_against_a_setting_whether_or_not_a_line_joins_it() -> None:
    """A sampler's trials differ in all settings at once; and a method may have been run at one rate alone."""
    scattered = [trial(0.5 + i / 100, {"gate.tau": i / 20, "gate.beta": 1 + i % 7 / 10}) for i in range(12)]
    for axis in drawn("responses", make_study("tpe", [], scattered)).axes:
        assert sum(len(line.get_xdata()) for line in axis.lines if line.get_marker() == ".") == 12
    rates = [("oar_g", lr) for lr in (1e-4, 2e-4, 3e-4)] + [("grpo", 2e-4)]
    runs = [trial(0.5, {"scorer": name, "optimizer.lr": lr, "seed": s}) for name, lr in rates for s in (0, 1)]
    (axis,) = drawn("responses", make_study("m", [], runs)).axes
    dots = [line for line in axis.lines if line.get_marker() == "."]
    assert sorted((line.get_color() == GREY, len(line.get_xdata())) for line in dots) == [(False, 6), (True, 2)]


def test_cells_of_the_map_do_not_pool_what_differs_in_other_settings() -> None:
    runs = [
        trial(tau, {"gate.tau": tau, "gate.beta": beta, "optimizer.lr": lr})
        for tau, beta, lr in itertools.product((0.2, 0.4), (1.0, 2.0), (1e-4, 2e-4))
    ]
    study = make_study("g", [], runs)
    assert reason("tau_beta", study) == "its cells would pool runs that differ in optimizer.lr"
    entropies = {run.run_id: Curve(np.arange(10.0), np.full(10, 0.5)) for run in study.runs}
    figure = drawn("entropy", study, {"entropy": entropies})
    assert not [axis for axis in figure.axes if axis.get_xlabel() == "tau"], "nor does entropy against tau"


def test_a_scorers_own_rate_is_not_the_learning_rate() -> None:
    runs = [
        trial(0.5 + own, {"scorer.lr": own, "optimizer.lr": lr}) for own, lr in itertools.product((0.1, 0.2, 0.3), (1e-4, 2e-4))
    ]
    study = make_study("prime", [], runs)
    place = study.place("optimizer.lr")
    assert place is not None
    assert study.factors[place] == "optimizer.lr"
    series, _ = study_series(study)
    assert len(series) == 3, "one for each rate of the scorer"


def test_the_legend_names_what_only_a_later_panel_has() -> None:
    study = methods({"uniform": [0.5], "oar_g": [0.6]})
    first, second = study.runs
    curve = Curve(np.arange(3.0), np.full(3, 0.7))
    metrics = {"credit/ess_ratio": {first.run_id: curve}, "credit/top10_mass": {second.run_id: curve}}
    (legend,) = drawn("credit_shape", study, metrics).legends
    assert [text.get_text() for text in legend.get_texts()] == ["uniform (1)", "oar_g (1)"]


def test_less_is_no_better_of_what_is_no_accuracy() -> None:
    runs = [trial(0.5, {"scorer": name}, duration_s=s) for name, s in (("a", 1.0), ("b", 2.0))]
    runs = [dataclasses.replace(run, metrics={**run.metrics, "loss": 0.1}) for run in runs]
    assert reason("pareto", make_study("t", [], runs, "loss")) == "loss is no accuracy, of which more is better"
    for name in ("avg_at_4", "pass_at_16", "maj_at_4", "greedy"):
        named = [dataclasses.replace(run, metrics={**run.metrics, f"eval/x/{name}": 0.5}) for run in runs]
        assert make_study("t", [], named, f"eval/x/{name}").of_accuracy


def test_a_method_is_drawn_at_its_best_rate() -> None:
    results = {("uniform", 1e-4): 0.4, ("uniform", 2e-4): 0.6, ("oar_g", 1e-4): 0.5, ("oar_g", 2e-4): 0.3}
    runs = [trial(v + s / 100, {"scorer": m, "optimizer.lr": lr, "seed": s}) for (m, lr), v in results.items() for s in (0, 1)]
    study = make_study("x", [], runs, baseline="uniform lr=0.0001")
    series, note = study_series(study)
    found = {one.label: (one.base, one.color) for one in series}
    assert found == {"uniform lr=0.0002": (True, GREY), "oar_g lr=0.0001": (False, STYLES["oar_g"].color)}
    assert note == "Each method at the rate with its highest mean."
    colors = arm_colors(study)
    assert colors["uniform lr=0.0002"] == GREY
    assert colors["uniform lr=0.0001"] == colors["oar_g lr=0.0002"] == PALE


def test_a_rate_with_fewer_runs_is_not_a_methods_best() -> None:
    results = {("uniform", 1e-4): [0.4, 0.4], ("oar_g", 1e-4): [0.5, 0.5], ("oar_g", 2e-4): [0.9]}
    runs = [
        trial(v, {"scorer": m, "optimizer.lr": lr, "seed": seed})
        for (m, lr), own in results.items()
        for seed, v in enumerate(own)
    ]
    series, note = study_series(make_study("x", [], runs))
    assert [one.label for one in series] == ["uniform lr=0.0001", "oar_g lr=0.0001"]
    assert note == "Each method at the rate with its highest mean, of those with the most runs."


def test_a_method_has_its_colour_against_the_rate_too() -> None:
    rates = (1e-4, 2e-4, 3e-4)
    runs = [
        trial(0.1 * place + rate * 100, {"scorer": name, "optimizer.lr": rate})
        for place, name in enumerate(("oar_g", "uniform", "random"))
        for rate in rates
    ]
    study = make_study("x", [], runs, baseline="uniform lr=0.0002")
    (axis,) = drawn("responses", study).axes
    lines = {line.get_label(): line for line in axis.lines if line.get_linestyle() == "-"}
    colors = arm_colors(study)
    assert {name: line.get_color() for name, line in lines.items()} == {
        name: colors[f"{name} lr=0.0003"] for name in ("uniform", "oar_g", "random")
    }
    assert len({line.get_marker() for line in lines.values()}) == 3


def test_a_whisker_that_leaves_the_panel_ends_in_an_arrowhead() -> None:
    left, right = drawn("arms", methods({"uniform": [0.5, 0.5, 0.5], "oar_g": [0.5, 0.5, 0.8], "oar_p": [0.5, 0.8]})).axes
    for axis in (left, right):
        heads = {(line.get_marker(), line.get_xdata()[0]) for line in axis.lines if line.get_marker() in ("<", ">")}
        assert heads == {("<", axis.get_xlim()[0]), (">", axis.get_xlim()[1])}
    values, differences = [0.5, 0.5, 0.8], [0.0, 0.0, 0.3]
    for axis, own in ((left, values), (right, differences)):
        margin = 100 * t.ppf(0.975, 2) * np.std(own, ddof=1) / 3**0.5
        ends = [100 * np.mean(own) - margin, 100 * np.mean(own) + margin]
        assert [text.get_text() for text in axis.texts] == [f"to {end:.3g}" for end in ends], "where it goes"
    bars = [container.has_xerr for container in left.containers]
    assert bars == [False, True, False], "equal runs and two runs have no interval"


def test_of_many_arms_the_best_are_drawn_and_no_colour_twice() -> None:
    series, note = study_series(grid([0, 0.2, 0.4, 0.6], [1, 2, 4]))
    assert [one.label for one in series] == [f"tau={tau} beta=4" for tau in ("0", "0.2", "0.4", "0.6")]
    assert note == "Of each tau the arm with the highest mean."
    series, note = study_series(methods({f"method{i}": [i / 20] for i in range(14)} | {"uniform": [0.0]}))
    assert [one.label for one in series] == ["uniform", *(f"method{i}" for i in range(5, 14))]
    assert note == "Of 15 arms the baseline and the 9 others with the highest means are drawn."
    assert len({one.color for one in series}) == len(series)
    series, _ = study_series(methods({f"method{i}": [i / 20] for i in range(10)}))
    assert len({one.color for one in series}) == len(series) == 10
