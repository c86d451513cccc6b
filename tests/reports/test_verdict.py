"""The verdict: its rule, its pairing, and that the committed page is that of the committed runs."""

from __future__ import annotations

from collections.abc import Iterator
from types import ModuleType

import matplotlib.pyplot as plt
import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.stats import t, ttest_1samp
from support.study_scripts import REPORTS

from oar_lightning.reporting.statistics import Interval, mean_interval

FOLDER = REPORTS / "verdict"
T_QUANTILES = {n: float(t.ppf(0.975, n - 1)) for n in (3, 5)}


@pytest.fixture(autouse=True)
def _closed() -> Iterator[None]:
    yield
    plt.close("all")


@pytest.fixture
def leads(load) -> ModuleType:
    return load("leads")


def interval(low: float, high: float) -> Interval:
    return Interval((low + high) / 2, low, high, 5)


@pytest.mark.parametrize(
    ("unused", "every", "adjusted", "expected"),
    [
        ((1, 3), (1, 2), 0.01, "above"),
        ((-3, -1), (-2, -1), 0.01, "below"),
        ((1, 3), (1, 2), 0.06, "sign of a lead"),
        ((-1, 3), (1, 2), 0.01, "sign of a lead"),
        ((1, 3), (-1, 2), 0.5, "sign of a lead"),
        ((-3, -1), (-2, 1), 0.5, "sign of a deficit"),
        ((-3, -1), (1, 2), 0.01, "not shown"),
        ((-1, 1), (-1, 1), 0.9, "not shown"),
    ],
)
def test_the_rule(
    leads: ModuleType, unused: tuple[float, float], every: tuple[float, float], adjusted: float, expected: str
) -> None:
    one = leads.Lead("m", "t", interval(*unused), interval(*every), 0.0)
    assert leads.verdict(one, adjusted) == expected


def worse(method: str) -> dict[tuple[str, float], dict[int, float]]:
    return {(method, 3e-4): {0: 1.0, 1: 1.0}, (method, 5e-5): {0: 1.0, 1: 1.0}}


BASE = {("grpo", 1e-4): dict.fromkeys(range(5), 50.0), ("grpo", 2e-4): dict.fromkeys(range(5), 40.0)} | worse("grpo")


def test_a_lead_is_of_pairs_at_the_best_rates_of_both(leads: ModuleType) -> None:
    own = {("own", 1e-4): {0: 60.0, 1: 60.0}, ("own", 2e-4): dict(enumerate((61.0, 62.0, 51.0, 49.0, 50.5)))} | worse("own")
    found = leads.lead(BASE | own, "t", "own", "grpo")
    differences = [11.0, 12.0, 1.0, -1.0, 0.5]
    assert found.every.mean == pytest.approx(np.mean(differences))
    assert found.unused.mean == pytest.approx(np.mean(differences[2:]))
    assert found.p == pytest.approx(ttest_1samp(differences, 0).pvalue)


def test_a_method_without_all_its_runs_or_rates_has_no_lead(leads: ModuleType) -> None:
    whole = {("own", 2e-4): dict.fromkeys(range(5), 1.0)}
    assert leads.lead(BASE | whole | worse("own"), "t", "own", "grpo") is not None
    assert leads.lead(BASE | whole, "t", "own", "grpo") is None
    assert leads.lead(BASE | {("own", 2e-4): dict.fromkeys(range(4), 1.0)} | worse("own"), "t", "own", "grpo") is None
    assert leads.lead(BASE, "t", "own", "grpo") is None


def test_the_committed_pages_are_those_of_the_committed_runs(load, leads: ModuleType) -> None:
    measure, found = load("measure"), leads.leads_over_grpo()
    claims = load("claims")
    verdict, whole = (page.read_text(encoding="utf-8") for page in (measure.PAGE, measure.WHOLE))
    assert load("in_short").answers_table() in verdict, "python reports/verdict/measure.py"
    assert claims.claim_table(claims.claims(found, leads.verdicts(found))) in verdict
    assert measure.by_rules() in whole
    assert measure.by_families(found) in whole


def test_the_first_table_has_all_that_was_asked_on_its_tasks_but_what_is_named_here(load) -> None:
    short = load("in_short")
    of_tasks = {
        (task, one.arm, one.other, one.stage_on(task))
        for task in short.COLUMNS
        for questions in short.QUESTIONS.values()
        for one in questions
    }
    assert {(task, other) for task, _, other, _ in load("settled").asked_keys() - of_tasks} == {
        *(("long_answer", other) for other in ("oar_g_last", "oar_g_joint", "random")),  # probes; a control that is not settled
        *((task, "grpo_higher, less the lead at the tuned rates") for task in ("asides", "graph")),  # a change of a lead
        ("asides", "grpo"),  # the pairs of anchor_states with which half of perfect credit's lead was asked
    }


def test_an_answer_has_a_star_where_it_does_not_stay_after_correction(load, monkeypatch) -> None:
    short, settled = load("in_short"), load("settled")
    answered = settled.answered()[0]._replace(task="t", arm="a", other="grpo", stage="endpoint")
    for differences, corrected, said in (
        ((1.0, 2.0, 3.0), 0.01, "+2.0 [-0.5, +4.5] (3): not settled"),
        ((2.0, 2.1, 2.2), 0.01, "+2.1 [+1.9, +2.3] (3): yes"),
        ((2.0, 2.1, 2.2), 0.06, "+2.1 [+1.9, +2.3] (3): yes\\*"),
        ((-2.0, -2.1, -2.2), 0.06, "-2.1 [-2.3, -1.9] (3): no\\*"),
        ((-0.1, 0.0, 0.1), 1.0, "+0.0 [-0.2, +0.2] (3): no"),
    ):
        one = answered._replace(differences=differences, corrected=corrected)
        monkeypatch.setattr(settled, "answered", lambda one=one: [one])
        assert short.cell("t", "a", "grpo", "endpoint") == said
    assert short.cell("asides", "oar_p", "grpo", "again") == short.NOT_RUN
    monkeypatch.setattr(settled, "asked_keys", lambda: {("graph", "own", "grpo", "endpoint")})
    monkeypatch.setattr(short, "asked_keys", settled.asked_keys)
    assert short.cell("graph", "own", "grpo", "endpoint") == short.NOT_YET


def test_an_arm_that_nobody_asked_about_is_above_below_or_not_told_apart(load, monkeypatch) -> None:
    settled = load("settled")
    for low, high, word in ((0.1, 3.0, "above"), (-3.0, -0.1, "below"), (-1.0, 1.0, "not told apart")):
        monkeypatch.setattr(settled, "whole_lead", lambda *_, low=low, high=high: (12, interval(low, high)))
        found = settled.evidence("asides", "own", "other")
        assert (found.word, found.pairs, found.asked) == (word, 12, False)


def test_pairs_of_the_study_with_rules_decide_a_claim_and_families_stand_beside_them(
    load, leads: ModuleType, monkeypatch
) -> None:
    compared, settled = load("compared"), load("settled")
    own = {
        "asides": settled.Evidence(interval(-3, -1), 24, "no", True),
        "graph": settled.Evidence(interval(1, 3), 12, "above", False),
    }
    monkeypatch.setattr(compared, "evidence", lambda task, *_: own.get(task))
    five = made(leads, "asides", "a", 3) | made(leads, "one_step", "a", 5)
    said = {("asides", "a"): "sign of a lead", ("one_step", "a"): "above"}
    found = compared.compared("it leads", "a", "grpo", said, five)
    assert found.verdict == "asides no; graph above (explored); one_step above"
    assert found.figures == (
        "asides -2.0 [-3.0, -1.0] (families, 5 pairs: +3.0 [+2.0, +4.0], sign of a lead); graph +2.0 [+1.0, +3.0]; "
        "one_step +5.0 [+4.0, +6.0]"
    )
    assert found.n == "asides 24 pairs, graph 12 pairs, one_step 5 pairs"
    assert found.tested == f"asides {compared.FAIRLY}; graph {compared.EXPLORED}; one_step {compared.CHOSE}"


def test_a_claim_that_was_asked_again_is_decided_by_its_pairs_once_all_are_there(load, monkeypatch) -> None:
    claims, settled = load("claims"), load("settled")
    older = claims.Claim("it matters", "not shown", "+1.0", "3 pairs", "weakly: short", "`run`", "[old](old/README.md)")
    assert claims.asked_again(older, None, "fairly") == older
    found = claims.asked_again(older, ("yes", "+2.0 [+1.0, +3.0]"), "fairly")
    assert found[:5] == (
        *("it matters", "yes", "+2.0 [+1.0, +3.0] (before: not shown; 3 pairs; weakly: short; +1.0)"),
        *("12 pairs", "fairly"),
    )
    few = settled.tables.AskedLead("+1.0 [-3.0, +5.0]", 11, "not settled yet")
    monkeypatch.setattr(settled.tables, "asked_leads", lambda *_, **__: {"oar_g_tau_0.3": few})
    monkeypatch.setattr(settled.tables, "lead_at_higher_rate", lambda *_: few)
    assert settled.of_levels() is settled.of_tau() is settled.of_rate() is None
    all_in = few._replace(pairs=12, verdict="yes")
    monkeypatch.setattr(settled.tables, "asked_leads", lambda *_, **__: {"oar_g_tau_0.3": all_in})
    assert settled.of_tau() == (
        "against OAR-G, tau 0.3 yes",
        "against OAR-G, tau 0.3 +1.0 [-3.0, +5.0] (12 pairs)",
    )


def test_every_method_has_a_name_and_a_look_of_its_own(load, leads: ModuleType) -> None:
    labels = load("labels")
    methods = {method for task in leads.families.TASKS for method, _ in leads.results_of(task)} | {*leads.families.ARMS}
    bases = {labels.parts(method)[0] for method in methods}
    assert bases <= labels.NAMES.keys()
    assert bases <= labels.STYLES.keys()
    assert {method for method, style in labels.STYLES.items() if style.marker == "*"} == {*leads.TOLD}


def test_every_arm_of_the_rules_is_of_a_kind_and_has_a_name(load) -> None:
    by_rules, labels = load("by_rules"), load("labels")
    arms = set(by_rules.rules.ARMS) - {by_rules.rules.BASELINE}
    assert set(by_rules.KIND_OF) == arms <= labels.NAMES.keys()
    answers = by_rules.answers()
    longer = {answers.pop((task, by_rules.rules.LONG)) for task in by_rules.TASKS}
    assert longer == {f"turning point above it: {word}" for word in ("not settled", "no\\*")}
    lasting = {(task, arm): answers.pop((task, arm)) for task, arm, _ in by_rules.rules.LASTING}
    lasting |= {
        ("asides", arm): answers.pop(("asides", arm)) for arm in (by_rules.rules.SELDOM_LONG, by_rules.rules.STATES_LONG)
    }
    words = {key: word.removeprefix(f"above {labels.named(by_rules.rules.LONG)}: ") for key, word in lasting.items()}
    assert words == {
        ("asides", by_rules.rules.PERFECT_LONG): "yes",
        ("graph", by_rules.rules.PERFECT_LONG): "not settled",
        ("asides", by_rules.rules.SELDOM_LONG): "yes\\*",
        ("asides", by_rules.rules.STATES_LONG): "not settled",
        ("asides", by_rules.rules.ESTIMATE_LONG): "not settled yet",
        ("graph", by_rules.rules.ESTIMATE_LONG): "not settled yet",
    }
    near, smaller = "OAR-G within 2 points of it", "OAR-G's lead over GRPO smaller at this rate"
    gates = {arm: answers.pop(("asides", arm)) for arm in by_rules.rules.ONE_CHANGED}
    assert gates == {
        **dict.fromkeys(("oar_g_tau_0.3", "oar_g_tau_0.7"), f"{near}: not settled"),
        "oar_g_boost_only": "OAR-G above it: not settled",
        "oar_g_suppress_only": "OAR-G above it: no",
    }
    rates = {(task, answers.pop((task, arm))) for task in by_rules.TASKS for arm in by_rules.rules.AT_HIGHER_RATE}
    assert rates == {("asides", f"{smaller}: yes\\*"), ("graph", f"{smaller}: not settled")}
    half, again = answers.pop(("asides", "anchor_states")).split("; ")
    assert (half, again[:32]) == ("half of perfect credit's lead: no", "above GRPO, 24 other pairs: yes,")
    assert set(answers.values()) <= {
        *(f"{what}: {word}" for what in ("above GRPO", "half of perfect credit's lead") for word in ("yes", "no")),
        *(f"above GRPO: {word}" for word in ("not settled", "not settled yet", "no\\*")),
        "turning point above it: yes",
        "shared states above it: yes",
    }


def test_what_was_asked_of_another_comparison_leaves_the_lead_over_grpo_explored(load) -> None:
    """What is drawn is the lead over GRPO."""
    by_rules = load("by_rules")
    drawn = {(task, arm) for task, arm in by_rules.leads_by_rules() if by_rules.lead_was_asked(task, arm)}
    methods = ("oar_g", "turning_point", "anchor_states", by_rules.rules.SHORT, by_rules.rules.SELDOM)
    assert drawn == {(task, arm) for task in by_rules.TASKS for arm in methods}


def test_an_arm_stands_at_its_updates_times_the_price_of_its_step(load) -> None:
    in_time = load("in_time")
    rules, first = in_time.rules, load("settled").ROWS[0]
    plain = first._replace(task="graph", stage="endpoint", step_s=100.0, score_s=50.0)
    runs = [
        plain._replace(arm=arm, seed=seed, accuracy=accuracy + seed % 2 / 100, run_id=f"{arm}{seed}")
        for arm, accuracy in ((rules.BASELINE, 0.5), (rules.SHORT, 0.6), ("turning_point", 0.7))
        for seed in rules.OTHER_SEEDS
    ]
    (short, whole) = in_time.places(runs, "graph", ("turning_point", rules.SHORT))
    assert (short.time, whole.time) == (170.0, 320.0), "85 and 160 updates of twice GRPO's time"
    assert short.accuracy.mean == pytest.approx(60.5)
    assert whole.accuracy.low < 70.5 < whole.accuracy.high
    assert [place.time for place in in_time.places(runs, "graph", (rules.BASELINE,))] == [160.0], "whatever it scores"
    assert in_time.places(runs[:-1], "graph", ("turning_point",)) == [], "a pair is missing"


def test_names_of_methods_rates_and_lists(load) -> None:
    labels = load("labels")
    assert labels.named("shear_negative") == "SHEAR, of wrong completions alone"
    assert labels.named("a_new_one") == "a new one", "a page is written with methods that have no name yet"
    assert [labels.rate(lr) for lr in (1e-4, 1.5e-4, 5e-5)] == ["1e-4", "1.5e-4", "5e-5"]
    assert [labels.listed(words) for words in ([], ["a"], ["a", "b"], ["a", "b", "c"])] == [
        "none",
        "a",
        "a and b",
        "a, b and c",
    ]


def students(values: NDArray[np.float64]) -> Interval:
    """Student's interval, as `mean_interval` makes it in a hundred times the time."""
    n, half = len(values), T_QUANTILES[len(values)] * values.std(ddof=1) / len(values) ** 0.5
    return Interval(values.mean(), values.mean() - half, values.mean() + half, n)


def test_signs_come_by_chance_as_often_as_the_rule_makes_them(leads: ModuleType) -> None:
    draws, rng = 1500, np.random.default_rng(1)
    for n in T_QUANTILES:
        values = rng.normal(size=n)
        own, expected = students(values), mean_interval(values)
        assert (own.mean, own.low, own.high) == pytest.approx((expected.mean, expected.low, expected.high))
    found = 0
    for _ in range(draws):
        pairs = rng.normal(size=5)
        one = leads.Lead("m", "t", students(pairs[2:]), students(pairs), 0.0)
        found += leads.verdict(one, 1.0) != "not shown"
    assert leads.chance() == pytest.approx(found / draws, abs=0.025)
    assert 0.05 < leads.chance() < 0.1, "more than one interval alone, less than two independent ones"


def test_two_methods_are_compared_by_the_rule_for_leads_over_grpo(load, leads: ModuleType, monkeypatch) -> None:
    compared = load("compared")
    results = BASE | {("own", 2e-4): dict(enumerate((50.9, 51.0, 51.1, 51.0, 51.05)))} | worse("own")
    monkeypatch.setattr(compared, "results_of", lambda task: results if task == "graph" else {})
    (claim,) = compared.against([("it does better", "own", "grpo")])
    assert claim.verdict == "graph above"
    assert claim.figures == "graph +1.0 [+0.9, +1.1]"
    assert claim.page == "[families](families/README.md)"


def test_a_change_over_rates_is_of_seeds_that_both_have(load, monkeypatch) -> None:
    sweeps = load("sweeps")
    found = {1e-4: {0: 1.0, 1: 3.0}, 2e-4: {0: 0.0, 1: 1.0, 2: 2.0, 3: 9.0}, 4e-4: {0: -5.0, 1: -4.2, 2: -2.8}}
    monkeypatch.setattr(sweeps, "by_rate", lambda task, method: found)
    word, text = sweeps.rate_text("graph", "own")
    assert word == "graph a sign of it"
    assert text.startswith("graph +2.0 (+1.0 and +3.0) at 1e-4, ")
    change = mean_interval([-5.0, -5.2, -4.8])
    assert text.endswith(f"from 2e-4 to 4e-4 {change:+.1f}")
    found[4e-4][2] = 20.0
    assert sweeps.rate_text("graph", "own")[0] == "graph not shown"


def made(leads: ModuleType, task: str, method: str, middle: float):
    one = Interval(middle, middle - 1, middle + 1, 5)
    return {(task, method): leads.Lead(method, task, one, one, 0.0)}


def test_the_families_say_what_is_shown_and_how_near_an_estimate_comes(load, leads: ModuleType) -> None:
    summary = load("summary")
    found = made(leads, "graph", "oracle", 12) | made(leads, "graph", "oar_g", 3) | made(leads, "graph", "curriculum", 9)
    found |= made(leads, "graph", "shear", -3) | made(leads, "asides", "oracle", 0.5)
    said = {key: "above" if one.every.low > 0 else "not shown" for key, one in found.items()}
    lines = summary.shown(found, said).splitlines()
    assert lines[0] == "- **Shown to beat GRPO, and told of the error**: perfect credit on `graph`."
    assert lines[1] == "- **Shown to beat GRPO, and not told**: OAR-G on `graph`; curriculum of difficulty on `graph`."
    assert lines[3] == "- **Shown to end below GRPO**: none."
    (row,) = summary.half(found, said).splitlines()[2:]
    assert [cell.strip() for cell in row.strip("|").split("|")][2:] == ["+6.0", "OAR-G", "+3.0 [+2.0, +4.0]", "50", "2 of 2"]


def test_what_lies_beyond_an_axis_has_an_arrow_and_its_number(load, leads: ModuleType, tmp_path, monkeypatch) -> None:
    figures = load("figures")
    kept = []
    monkeypatch.setattr(figures, "save", lambda figure, path: kept.append(figure))
    monkeypatch.setattr(figures, "missing", lambda task, method: "no run")
    found = made(leads, "graph", "oracle", 12) | made(leads, "graph", "spro", -60) | made(leads, "asides", "oar_g", -29.5)
    figures.draw_leads(found, tmp_path)
    asides, graph = kept[0].axes
    heads = [[line.get_marker() for line in axis.lines if line.get_marker() in ("<", ">")] for axis in (asides, graph)]
    assert heads == [["<"], ["<"]]
    texts = [[text.get_text() for text in axis.texts] for axis in (asides, graph)]
    assert "-60.0 [-61.0, -59.0]" in texts[1]
    assert sorted(texts[0]) == ["no run", "no run", "to -30.5"], "a method without a run is no empty row"


def test_costs_are_drawn_of_the_methods_that_have_one(load, leads: ModuleType, tmp_path, monkeypatch) -> None:
    figures = load("figures")
    kept = []
    monkeypatch.setattr(figures, "save", lambda figure, path: kept.append(figure))
    monkeypatch.setattr(figures, "processor_time", lambda: {"grpo": 1.0, "oar_g": 1.2, "spro": 2.0, "unrun": 3.0})
    monkeypatch.setattr(figures, "passes", lambda: {"grpo": 0.0, "oracle": 0.0, "oar_g": 2.0})
    found = made(leads, "asides", "oracle", 9) | made(leads, "asides", "oar_g", 3) | made(leads, "asides", "spro", -40)
    figures.draw_costs(found, tmp_path)
    left, right = kept[0].axes
    drawn = [[container.get_label() for container in axis.containers] for axis in (left, right)]
    assert drawn == [["OAR-G"], ["perfect credit", "OAR-G"]]
    assert [text.get_text() for text in left.texts] == ["below: SPRO -40"]
    (front,) = [line for line in left.lines if line.get_label() == "front of those not told"]
    assert [*zip(front.get_xdata(), front.get_ydata(), strict=True)] == [(1.0, 0.0), (1.2, 3.0), (2.0, 3.0)]
    assert [text.get_text() for text in kept[0].legends[0].get_texts()][1:] == ["GRPO", "OAR-G", "perfect credit"]


def test_methods_of_one_cost_stand_side_by_side(load) -> None:
    places = load("figures").side_by_side({"a": 0.0, "b": 0.0, "c": 2.0})
    assert places["a"] == -places["b"] != 0
    assert places["c"] == 2.0
