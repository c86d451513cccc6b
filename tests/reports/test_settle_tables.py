"""The tables of the confirmatory study: pairs, intervals and verdicts, by hand."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import sem, t, ttest_1samp
from support.settle_runs import row, rules
from support.study_scripts import load_script

tables, decoded, sections, asked = (load_script("settle", name) for name in ("tables", "greedy", "sections", "asked"))
norms, learning, step_times = (load_script("settle", name) for name in ("norms", "learning", "step_times"))


def endpoint(differences) -> list:
    seeds = rules.ENDPOINT_SEEDS[: len(differences)]
    grpo = [row("endpoint", "grpo", "1e-4", "", seed, 0.6) for seed in seeds]
    return grpo + [row("endpoint", "oar_g", "1e-4", "2.0", s, 0.6 + d / 100) for s, d in zip(seeds, differences, strict=True)]


def cells(rows, arm: str) -> list[str]:
    lines = [
        [cell.strip() for cell in line.strip("|").split("|")] for line in tables.endpoint_table(rows, "graph").splitlines()
    ]
    return next(line for line in lines if line[0] == arm)


def test_pairs_have_students_interval_and_a_verdict_once_all_are_there() -> None:
    differences = np.array([40.0, *np.linspace(1.0, 5.0, 23)])  # of these a bootstrap has another interval
    low, high = t.interval(0.95, 23, differences.mean(), sem(differences))
    found = cells(endpoint(differences), "oar_g")
    assert found[4:7] == ["24", f"{60 + differences.mean():.1f}", f"{differences.mean():+.1f} [{low:+.1f}, {high:+.1f}]"]
    assert found[-1] == "yes"
    assert cells(endpoint(differences[:23]), "oar_g")[-1] == "-"
    assert cells(endpoint(differences), "grpo")[6:10] == ["-", "-", "0", "100"]


def test_arms_are_compared_with_grpo_of_the_same_time_too() -> None:
    rows = endpoint([3.0, 5.0, 4.0])
    rows += [r._replace(arm="grpo_more", accuracy=0.61, run_id=f"more{r.run_id}") for r in rows if r.arm == "grpo"]
    low, high = t.interval(0.95, 2, 3.0, 1 / 3**0.5)
    assert cells(rows, "oar_g")[7] == f"+3.0 [{low:+.1f}, {high:+.1f}]"
    assert cells(rows, "grpo_more")[7] == "-"


def test_what_was_recorded_alone_has_a_mean() -> None:
    rows = [r._replace(grad_norm=norm) for r, norm in zip(endpoint([1.0, 2.0])[2:], (0.5, float("nan")), strict=True)]
    assert cells(rows, "oar_g")[10:13] == ["0.50", "-", "-"]


def test_the_time_of_all_runs_says_of_how_many_it_was_recorded() -> None:
    rows = [r._replace(cpu_s=cpu) for r, cpu in zip(endpoint([1.0]), (3600.0, float("nan")), strict=True)]
    assert sections.time_in_all(rows) == "2 runs, 1.0 hours, of 1 of them"
    assert sections.time_in_all(rows[:1]) == "1 runs, 1.0 hours"


def test_an_arm_that_is_only_explored_has_no_verdict() -> None:
    rows = endpoint(np.linspace(1.0, 5.0, 24))
    rows += [r._replace(arm="oracle", run_id=f"x{r.run_id}") for r in rows if r.arm == "oar_g"]
    assert cells(rows, "oracle")[-1] == "-"


def twelve(own: float, perfect: float, spread: float = 0.01, seconds: float = 150.0, arm: str = "turning_point") -> list:
    """Twelve pairs each: GRPO at 0.5, the leads of an estimate and of perfect credit, and how single runs of all scatter; and
    three timed runs of the estimate, of `seconds` where they would have taken 100 without scoring, 60 of it not in steps."""
    made = [
        row("time", arm, "1e-4", "", seed, 0.5)._replace(total_s=seconds, score_s=seconds - 100, step_s=seconds - 60)
        for seed in rules.TIMED_SEEDS
    ]
    for name, lead in (("grpo", 0.0), (arm, own), ("oracle", perfect)):
        noise = np.random.default_rng(len(name)).normal(0, spread, 12)
        made += [
            row("endpoint", name, "1e-4", "", s, 0.5 + lead + n)._replace(cpu_s=7.0 * s)
            for s, n in zip(rules.OTHER_SEEDS, noise - noise.mean(), strict=True)
        ]
    return made


def test_half_of_what_perfect_credit_gains_by_hand() -> None:
    rows = twelve(0.06, 0.1)
    found = tables.half(rows, "graph", "turning_point")
    ends = [r for r in rows if r.stage == "endpoint"]
    pairs = {arm: np.array([r.accuracy for r in ends if r.arm == arm]) for arm in ("turning_point", "grpo")}
    difference = 100 * (pairs["turning_point"] - pairs["grpo"])
    assert (found.lead, found.perfect, found.time, found.step_time) == pytest.approx((6, 10, 1.5, 90 / 40))
    assert found.p == pytest.approx(2 * t.sf(difference.mean() / sem(difference), 11))
    assert found.share.mean == pytest.approx(0.6)
    assert found.share.low < 0.6 < found.share.high
    assert found.reached


@pytest.mark.parametrize(
    "rows",
    [
        pytest.param(twelve(0.04, 0.1), id="less than half"),
        pytest.param(twelve(0.06, 0.1, spread=0.2), id="by chance"),
        pytest.param(twelve(0.06, 0.1, seconds=201.0), id="too slow"),
        pytest.param(twelve(0.0, -0.1), id="nothing to gain"),
    ],
)
def test_half_is_not_reached(rows: list) -> None:
    assert not tables.half(rows, "graph", "turning_point").reached


def test_half_is_asked_once_all_pairs_are_there() -> None:
    assert tables.half(twelve(0.06, 0.1)[:-1], "graph", "turning_point") is None
    assert tables.half(twelve(0.06, 0.1)[1:], "graph", "turning_point") is None, "a timed run is missing"
    assert tables.half(twelve(0.06, 0.1), "asides", "turning_point") is None
    settled = tables.half_table(twelve(0.06, 0.1))
    assert settled.count("| not run |") == 3
    assert settled.count("| yes |") == 1
    assert tables.half_table(twelve(0.06, 0.1)[:-1]).count("| not settled yet |") == 1


def probes(lead: float, count: int = 12) -> list:
    """Pairs of OAR-G by the mean over the answer, which is better by `lead` points, and by the last token."""
    accuracies = {"oar_g": lead / 100, "oar_g_last": 0.0}
    made = [
        row("endpoint", arm, "1e-4", "2.0", seed, 0.5 + more + seed % 2 / 500 * (arm == "oar_g"))
        for arm, more in accuracies.items()
        for seed in rules.OTHER_SEEDS[:count]
    ]
    return [r._replace(task=rules.PROBES.task) for r in made]


@pytest.mark.parametrize(
    ("rows", "line"),
    [
        (probes(3.0), "| oar_g_last | +3.1 [+3.0, +3.2] | 12 | yes |"),
        (probes(-1.0), "| oar_g_last | -0.9 [-1.0, -0.8] | 12 | no |"),
        (probes(3.0, 11), "| oar_g_last | +3.1 [+3.0, +3.2] | 11 | not settled yet |"),
        (probes(3.0, 1), "| oar_g_last | - | 1 | not settled yet |"),
    ],
)
def test_the_probes_are_compared_pair_by_pair(rows: list, line: str) -> None:
    lines = tables.comparison_table(rows, rules.PROBES, "the mean").splitlines()
    assert line in lines
    assert lines[-1] == "| oar_g_joint | - | 0 | not settled yet |"


def test_what_is_asked_again_is_asked_of_its_own_pairs() -> None:
    """24 of another stage; those of the endpoint, in which the lead was seen, do not count."""
    seen = [row("endpoint", arm, "1e-4", "", seed, 0.5) for arm in ("oar_g", "grpo") for seed in rules.OTHER_SEEDS]
    own = [
        row("again", arm, "1e-4", "", seed, 0.5 + (0.02 + seed % 2 / 500) * (arm == "oar_g"))
        for arm in ("oar_g", "grpo")
        for seed in range(300, 324)
    ]
    rows = [r._replace(task="long_answer") for r in (*seen, *own)]
    lines = tables.comparison_table(rows, rules.AGAIN, "OAR-G", "again").splitlines()
    missing = [f"| {arm} | - | 0 | not settled yet |" for arm in ("grpo_in_oar_g_time", "shuffled", "random")]
    assert lines[2:] == ["| grpo | +2.1 [+2.1, +2.1] | 24 | yes |", *missing]
    assert tables.asked_leads(rows[:-1], rules.AGAIN, "again")["grpo"].verdict == "not settled yet"
    assert tables.asked_leads(rows[: len(seen)], rules.AGAIN, "again")["grpo"].pairs == 0


def test_what_an_arm_in_equal_time_took_is_told_in_grpos_time() -> None:
    """139 updates of which each takes 1.2 times as long as without scoring, as 160 of 1.0425."""
    runs = [row("endpoint", rules.SELDOM, "1e-4", "2.0", seed, 0.54 + seed % 2 / 50) for seed in rules.OTHER_SEEDS]
    runs = [r._replace(step_s=12.0, score_s=2.0) for r in runs]
    runs += [row("endpoint", "grpo", "1e-4", "", seed, 0.5) for seed in rules.ENDPOINT_SEEDS]
    lines = tables.equal_time_table([r._replace(task="asides") for r in runs]).splitlines()
    assert len(lines) == 2 + 8
    (line,) = (line for line in lines if line.startswith("| `asides` | turning_point_seldom |"))
    assert line.startswith("| `asides` | turning_point_seldom | 139 | grpo | 160 | +5.0 [")
    assert line.endswith(" | 12 | yes | 1.04 |")


def test_grpo_in_the_time_of_another_arm_is_compared_with_it() -> None:
    """160 updates of which each takes 1.8 times as long as without scoring, as 302 of 0.954."""
    runs = [row("copying", "turning_point", "1e-4", "2.0", 100, 0.5)._replace(step_s=18.0, score_s=8.0)]
    runs.append(row("time", "turning_point", "1e-4", "2.0", 101, 0.5)._replace(step_s=20.0, score_s=10.0))
    for seed in rules.OTHER_SEEDS:
        runs.append(row("endpoint", "turning_point", "1e-4", "2.0", seed, 0.54 + seed % 2 / 50))
        runs.append(row("endpoint", rules.LONG, "1e-4", "", seed, 0.5))
    line = tables.equal_time_table(runs).splitlines()[-3]
    assert line.startswith("| `graph` | turning_point | 160 | grpo_longer | 302 | +5.0 [")
    assert line.endswith(" | 12 | yes | 1.06; copying 0.95 |"), "as its runs were made, and as they are since"


def test_leads_of_arms_that_train_on_are_over_grpo_that_trains_on() -> None:
    runs = [row("endpoint", "grpo", "1e-4", "", seed, 0.1) for seed in rules.OTHER_SEEDS]
    runs += [row("endpoint", rules.LONG, "1e-4", "", seed, 0.5) for seed in rules.OTHER_SEEDS]
    runs += [row("endpoint", rules.PERFECT_LONG, "1e-4", "", seed, 0.54 + seed % 2 / 50) for seed in rules.OTHER_SEEDS]
    lines = tables.lasting_table(runs).splitlines()[2:]
    assert [line.split(" | ")[:4] for line in lines] == [
        [f"| `{task}`", arm, rules.LONG, updates]
        for arm in (rules.PERFECT_LONG, rules.ESTIMATE_LONG)
        for task, updates in (("asides", "291"), ("graph", "302"))
    ]
    (perfect,) = (line for line in lines if line.startswith("| `graph` | oracle_longer"))
    assert "| +5.0 [" in perfect
    assert perfect.endswith(" | 12 | yes |")
    assert sum(line.endswith(" | - | 0 | not settled yet |") for line in lines) == 3


def test_a_change_of_leads_is_of_seeds_that_have_all_four_runs() -> None:
    values = {"grpo": 0.5, "oar_g": 0.52, "grpo_higher": 0.6, "oar_g_higher": 0.58}
    rows = [
        row("endpoint", arm, "1e-4", "", seed, accuracy + (0.01 * (seed % 2) if arm == "oar_g_higher" else 0))
        for arm, accuracy in values.items()
        for seed in rules.OTHER_SEEDS
    ]
    pairs, changes = tables.changes_at_higher_rate(rows, "graph")
    assert pairs == 12
    assert changes == pytest.approx([-4.0 + seed % 2 for seed in rules.OTHER_SEEDS])
    half = t.ppf(0.975, 11) * np.std(changes, ddof=1) / 12**0.5
    shown = f"-3.5 [{-3.5 - half:+.1f}, {-3.5 + half:+.1f}]"
    assert [one.differences for one in asked.answered(rows) if one.arm == "oar_g_higher"] == [tuple(changes)]
    line = tables.higher_rate_table(rows).splitlines()[-1]
    assert [cell.strip() for cell in line.strip("|").split("|")] == ["`graph`", "2e-4", shown, "12", "yes"]
    pairs, _ = tables.changes_at_higher_rate(rows[:-1], "graph")
    assert pairs == 11
    assert "not settled yet" in tables.higher_rate_table(rows[:-1]).splitlines()[-1]


def test_arms_that_shall_end_alike_do_so_within_the_margin() -> None:
    rows = [
        row("endpoint", arm, "1e-4", "", seed, 0.5 + shift + 0.001 * (seed % 2 if shift else 0))._replace(task="asides")
        for arm, shift in (("oar_g", 0.0), ("oar_g_tau_0.3", 0.004), ("oar_g_tau_0.7", 0.05))
        for seed in rules.OTHER_SEEDS
    ]
    said = [line.strip("|").split("|")[-1].strip() for line in tables.same_table(rows, rules.STABLE_TAU).splitlines()[2:]]
    assert said == ["yes", "no"]


def greedy(leads, arm: str = "turning_point") -> list:
    """Pairs with these leads in points with greedy decoding, of none at temperature 1."""
    seeds = rules.GREEDY_SEEDS[: len(leads)]
    made = [row("greedy", "grpo", "1e-4", "", s, 0.5)._replace(greedy=0.7, entropy=0.5) for s in seeds]
    return made + [
        row("greedy", arm, "1e-4", "2.0", s, 0.5 + s % 2 / 100)._replace(greedy=0.7 + d / 100)
        for s, d in zip(seeds, leads, strict=True)
    ]


def test_greedy_accuracies_are_compared_pair_by_pair() -> None:
    leads = np.linspace(-2.0, 10.0, 12)
    low, high = t.interval(0.95, 11, leads.mean(), sem(leads))
    line = decoded.greedy_table(greedy(leads)).splitlines()[-1]
    assert f"| 74.0 | {leads.mean():+.1f} [{low:+.1f}, {high:+.1f}] | - | - | 0 | 100 | yes |" in line
    assert "| 50.5 | +0.5 [" in line
    assert decoded.greedy_table(greedy(leads[:11])).splitlines()[-1].endswith("| - |"), "a pair is missing"
    assert decoded.greedy_table(greedy(leads, "oracle")).splitlines()[-1].endswith("| - |"), "nothing was asked of it"
    assert decoded.greedy_table([]) == "No runs yet."
    three = greedy(leads) + [one for one in greedy(leads - 1.0, "oracle") if one.arm == "oracle"]
    assert "| +0.0 | +1.0 | 0 | 100 |" in decoded.greedy_table(three).splitlines()[-1], "turning_point minus it"
    some = [one._replace(state="failed") if one.seed == 200 else one for one in greedy(leads)]
    *_, whole, ended = decoded.greedy_table(some).splitlines()
    assert ended.startswith("| turning_point, those not given up | 1e-4 | 2.0 | 11 |")
    assert f"| {leads[1:].mean():+.1f} [" in ended
    assert " | 1 | 100 |" in whole


def test_what_is_asked_of_new_pairs_is_a_comparison_of_its_own() -> None:
    seeds = {"endpoint": rules.OTHER_SEEDS, "again": rules.AGAIN_SEEDS}
    rows = [
        row(stage, arm, "1e-4", "", seed, 0.5 + (0.02 + seed % 3 / 500) * (arm == "anchor_states"))._replace(task="asides")
        for stage, own in seeds.items()
        for seed in own
        for arm in ("grpo", "anchor_states")
    ]
    found = {one.stage: len(one.differences) for one in asked.answered(rows)}
    assert found == {"endpoint": 12, "again": 24}
    assert [one.stage for one in asked.answered(rows[:-1])] == ["endpoint"], "a new pair is missing"


def test_all_that_was_asked_is_corrected_for_how_much_it_is() -> None:
    """Three comparisons with all their pairs: of p values in order the first counts three times, the second twice."""
    leads = {"graph": np.linspace(-2.0, 6.0, 24), "asides": np.linspace(-3.0, 5.0, 24)}
    rows = [r._replace(task=task) for task, found in leads.items() for r in endpoint(found)]
    greedily = np.linspace(2.0, 6.0, 12)
    rows += [*greedy(greedily), row("endpoint", "turning_point", "1e-4", "2.0", 100, 0.9)]  # of the last a pair is missing
    p = {name: ttest_1samp(found, 0).pvalue for name, found in {**leads, "greedily": greedily}.items()}
    first, second, third = asked.answered(rows)
    assert [(one.task, one.arm, one.other, one.decoded) for one in (first, second, third)] == [
        ("graph", "turning_point", "grpo", "greedily"),
        ("graph", "oar_g", "grpo", ""),
        ("asides", "oar_g", "grpo", ""),
    ]
    assert [one.p for one in (first, second, third)] == pytest.approx([p["greedily"], p["graph"], p["asides"]])
    assert first.corrected == pytest.approx(3 * p["greedily"])
    assert second.corrected == pytest.approx(2 * p["graph"])
    assert third.corrected == pytest.approx(p["asides"])
    lines = asked.asked_table(rows).splitlines()
    assert lines[2].startswith("| `graph` | turning_point | grpo, greedily | +4.0 [")
    assert lines[2].endswith(f" | 12 | {first.p:.2g} | {first.corrected:.2g} |")
    assert len(asked.answered(rows[1:])) == 2, "a pair on graph is missing"
    assert asked.asked_table([]) == "No comparison has all its pairs yet."


def test_lengths_of_gradients_are_compared_by_ratio() -> None:
    """Twice as long and half as long is as long; the interval is that of the logarithms."""
    ratios = np.array([2.0, 0.5, 1.0, 4.0])
    rows = endpoint([0.0] * 4)
    rows = [r._replace(grad_norm=0.3 * (ratios[r.seed - rules.ENDPOINT_SEEDS[0]] if r.arm == "oar_g" else 1)) for r in rows]
    low, high = np.exp(t.interval(0.95, 3, np.log(ratios).mean(), sem(np.log(ratios))))
    line = norms.norm_table(rows, ["graph"]).splitlines()[-1]
    assert line == f"| `graph` | oar_g | 1e-4 | 1e-4 | 4 | {2**0.5:.2f} [{low:.2f}, {high:.2f}] |"
    unknown = [r._replace(grad_norm=float("nan")) if r.seed != rules.ENDPOINT_SEEDS[0] else r for r in rows]
    assert "oar_g" not in norms.norm_table(unknown, ["graph"]), "one pair is no interval"


def test_the_time_of_steps_is_in_that_of_the_same_run_without_its_scoring() -> None:
    rows = [r._replace(step_s=40.0, score_s=s) for r, s in zip(endpoint([0.0] * 3)[3:], (8.0, 10.0, 20.0), strict=True)]
    unknown = [r._replace(step_s=float("nan"), score_s=float("nan")) for r in endpoint([0.0])]
    lines = step_times.step_time_table([*rows, *unknown], ["graph", "asides"]).splitlines()
    assert lines[2:] == [f"| {rows[0].arm} | 1.33 (1.25 to 2.00; 3 runs) | - |"]


def test_learning_curves_are_of_the_seeds_that_all_arms_have() -> None:
    rows = endpoint([0.0] * 3)
    fewer = [r._replace(arm="turning_point", run_id=f"t{r.seed}") for r in rows if r.arm == "oar_g"][1:]
    others = [r._replace(arm="random", run_id=f"r{r.seed}") for r in rows if r.arm == "oar_g"][2:]
    curve = {row.run_id: learning_curve(float(row.seed)) for row in [*rows, *fewer, *others]}
    found = learning.learning_bands([*rows, *fewer, *others], {"reward": curve}, "graph")
    assert set(found) == {"grpo", "oar_g", "turning_point"}, "which are shown"
    first = rules.ENDPOINT_SEEDS[0]
    for band in found.values():
        assert band.n == 2
        assert band.mean.tolist() == [first + 1.5] * 3


def learning_curve(value: float):
    from oar_lightning.reporting.runs import Curve

    return Curve(np.arange(1.0, 4.0), np.full(3, value))
