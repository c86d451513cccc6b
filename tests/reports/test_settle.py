"""The confirmatory study: tuning budgets, choosing, pairing and the rule, by hand."""

from __future__ import annotations

import numpy as np
import pytest
from hydra import compose
from omegaconf import OmegaConf
from scipy.stats import sem, t
from support.study_scripts import load_script

from oar_lightning.reporting.runs import RunRecord

study, rules, records, tables, decoded, sections = (
    load_script("settle", name) for name in ("study", "rules", "records", "tables", "greedy", "sections")
)


def row(stage: str, arm: str, lr: str, beta: str, seed: int, accuracy: float, state: str = "complete"):
    run_id = "".join(map(str, (stage, arm, lr, beta, seed)))
    return records.Row("graph", stage, arm, lr, beta, seed, accuracy, state, 100.0, "revision", run_id)


def tuning(arm: str, accuracy=lambda setting, seed: 0.5):
    return [
        row("tune", arm, setting.lr, setting.beta, seed, accuracy(setting, seed))
        for setting in rules.settings_of("graph", arm)
        for seed in rules.tuning_seeds(arm)
    ]


RUN = [(task, arm) for task in rules.RATES for arm in rules.ARMS if task in rules.OTHER_UPDATES.get(arm, rules.RATES)]
"""Tasks with the arms that may run on them."""


@pytest.mark.parametrize("arm", rules.ARMS)
@pytest.mark.parametrize("task", rules.RATES)
def test_every_arm_has_the_same_tuning_budget(task: str, arm: str) -> None:
    assert len(rules.settings_of(task, arm)) * len(rules.tuning_seeds(arm)) == 20


def test_an_arm_in_equal_time_has_no_updates_where_its_steps_were_not_timed() -> None:
    with pytest.raises(ValueError, match="turning_point_short has a number of updates on asides, graph, not on long_answer"):
        study.command("long_answer", "endpoint", rules.SHORT, rules.Setting("5e-5", "2.0"), (100,))


def test_seeds_of_tuning_are_not_reported() -> None:
    assert not set(rules.TUNING_SEEDS) & set(rules.ENDPOINT_SEEDS)
    assert (len(rules.ENDPOINT_SEEDS), len(rules.OTHER_SEEDS)) == (24, 12)


def test_the_best_setting_has_the_highest_mean_and_the_lower_rate_of_equal_ones() -> None:
    best_at = rules.Setting("1e-4", "1.0")
    rows = tuning("oar_g", lambda setting, seed: 0.6 if setting == best_at else 0.5)
    assert records.best(rows, "graph", "oar_g") == best_at
    assert records.best(tuning("grpo"), "graph", "grpo") == rules.Setting("5e-5", "")


def test_nothing_is_chosen_before_all_tuning_runs_are_there() -> None:
    rows = tuning("grpo")
    assert records.best(rows[:-1], "graph", "grpo") is None
    assert records.best(rows, "asides", "grpo") is None


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [
        (0.1, 5.0, "yes"),
        (0.1, 1.0, "yes"),
        (-3.0, 1.9, "no"),
        (-3.0, -1.0, "no"),
        (-1.0, 2.0, "not settled"),
        (0.0, 3.0, "not settled"),
    ],
)
def test_the_rule(low: float, high: float, expected: str) -> None:
    assert rules.verdict(low, high) == expected


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
    assert settled.count("not settled") == 3
    assert settled.count("| yes |") == 1


@pytest.mark.parametrize(("task", "arm"), RUN)
def test_a_sweep_is_found_again_by_its_name(task: str, arm: str) -> None:
    """Rows are read from the names of sweeps, which have tasks and arms with underscores in them."""
    for setting in rules.settings_of(task, arm):
        words = study.command(task, "endpoint", arm, setting, (100, 101))
        name = next(word for word in words if word.startswith("hydra.sweeper.study_name=")).partition("=")[2]
        tags, metrics = {"git_revision": "x", "seed": "100"}, {f"eval/{records.SETS[task]}/avg_at_4": 0.5}
        metrics |= {f"time/total_{phase}_s": 2.0 for phase in ("generate", "reward", "score", "update")}
        found = records.row_of(RunRecord("id", "name", "complete", "", 0, 1.0, tags, {}, metrics), name, {})
        assert found[:6] == (task, "endpoint", arm, setting.lr, setting.beta, 100)
        assert (found.step_s, found.score_s) == (8.0, 2.0)
        assert "evaluation.problems=1024" in words
        assert "evaluation.problems=1024" not in study.command(task, "tune", arm, setting, (50,))
        assert "evaluation.problems=1024" in study.command(task, "time", arm, setting, (100,)), "as long a run"


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


def test_what_an_arm_in_equal_time_took_is_told_in_grpos_time() -> None:
    """139 updates of which each takes 1.2 times as long as without scoring, as 160 of 1.0425."""
    runs = [row("endpoint", rules.SELDOM, "1e-4", "2.0", seed, 0.54 + seed % 2 / 50) for seed in rules.OTHER_SEEDS]
    runs = [r._replace(step_s=12.0, score_s=2.0) for r in runs]
    runs += [row("endpoint", "grpo", "1e-4", "", seed, 0.5) for seed in rules.ENDPOINT_SEEDS]
    lines = tables.equal_time_table([r._replace(task="asides") for r in runs]).splitlines()
    assert len(lines) == 2 + 7
    (line,) = (line for line in lines if line.startswith("| `asides` | turning_point_seldom |"))
    assert line.startswith("| `asides` | turning_point_seldom | 139 | grpo | 160 | +5.0 [")
    assert line.endswith(" | 12 | yes | 1.04 |")


def test_grpo_in_the_time_of_another_arm_is_compared_with_it() -> None:
    """160 updates of which each takes 1.8 times as long as without scoring, as 302 of 0.954."""
    runs = [row("copying", "turning_point", "1e-4", "2.0", 100, 0.5)._replace(step_s=18.0, score_s=8.0)]
    for seed in rules.OTHER_SEEDS:
        runs.append(row("endpoint", "turning_point", "1e-4", "2.0", seed, 0.54 + seed % 2 / 50))
        runs.append(row("endpoint", rules.LONG, "1e-4", "", seed, 0.5))
    line = tables.equal_time_table(runs).splitlines()[-2]
    assert line.startswith("| `graph` | turning_point | 160 | grpo_longer | 302 | +5.0 [")
    assert line.endswith(" | 12 | yes | 0.95 |")


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


@pytest.mark.parametrize("arm", rules.GREEDY_ARMS)
def test_policies_that_decode_greedily_too_are_found_again(arm: str) -> None:
    setting = rules.settings_of(rules.GREEDY_TASK, arm)[0]
    words = study.command(rules.GREEDY_TASK, "greedy", arm, setting, rules.seeds_of("greedy", [arm]))
    assert {"evaluation.greedy=true", "evaluation.problems=1024"} < set(words)
    assert ("loss.entropy_coef=-0.1" in words) == (arm == rules.PENALTY)
    name = next(word for word in words if word.startswith("hydra.sweeper.study_name=")).partition("=")[2]
    metrics = {"eval/graph/avg_at_4": 0.5, "eval/graph/greedy": 0.75}
    run = RunRecord("id", "name", "complete", "", 0, 1.0, {"git_revision": "x", "seed": "200"}, {}, metrics)
    found = records.row_of(run, name, {})
    assert (*found[:6], found.greedy) == ("graph", "greedy", arm, *setting, 200, 0.75)
    assert not set(rules.GREEDY_SEEDS) & {*rules.TUNING_SEEDS, *rules.ENDPOINT_SEEDS}


def test_a_table_survives_its_csv(tmp_path) -> None:
    rows = sorted(tuning("oar_g"))
    records.write_csv(tmp_path / "runs.csv", rows)
    assert records.read_csv(tmp_path / "runs.csv") == rows
    assert records.read_csv(tmp_path / "none.csv") == []


def test_of_runs_with_equal_settings_the_last_one_counts_not_the_best(tmp_path) -> None:
    first = row("endpoint", "oar_g", "1e-4", "2.0", 100, 0.6)
    again = first._replace(accuracy=0.5, run_id="again")
    records.write_csv(tmp_path / "runs.csv", [first, again])
    assert records.endpoint_runs(records.read_csv(tmp_path / "runs.csv"), "graph")["oar_g"][100] == again


def test_what_runs_csv_has_is_not_run_again(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A store may be lost, or be another machine's: what has ended is in the repository."""
    had = [*tuning("grpo"), *tuning("oar_g")[:-1], row("endpoint", "grpo", "5e-5", "", 100, 0.6)]
    records.write_csv(tmp_path / "runs.csv", had)
    started = []
    monkeypatch.setattr(study, "HERE", tmp_path)
    monkeypatch.setattr(study.subprocess, "run", lambda words, **_: started.append(" ".join(words)))
    with pytest.raises(SystemExit, match="oar_g: tuning runs are missing"):
        study.run("graph", ("grpo", "oar_g"), tmp_path / "store")
    assert len(started) == 2
    assert "seed=choice(51) hydra.sweeper.study_name=settle_graph_tune_oar_g_2e-4_1.0_from51" in started[0]
    assert "seed=choice(101,102" in started[1]
    assert "study_name=settle_graph_endpoint_grpo_5e-5_from101" in started[1]


@pytest.mark.usefixtures("hydra_conf")
@pytest.mark.parametrize(("task", "arm"), RUN)
def test_an_arms_command_is_a_run_of_the_rules(task: str, arm: str) -> None:
    """The words of the command, without the sweeper's, make the config that README.md promises."""
    words = study.command(task, "endpoint", arm, rules.settings_of(task, arm)[0], (100,))[5:]
    cfg = compose("config", overrides=[word.replace("choice(100)", "100") for word in words if not word.startswith("hydra.")])
    steps = {
        "turning_point_short": {"asides": 88, "graph": 85},
        "turning_point_seldom": {"asides": 139, "graph": 133},
        **{arm: {"asides": 291, "graph": 302} for arm in ("grpo_longer", "oracle_longer", "turning_point_longer")},
        "turning_point_seldom_longer": {"asides": 253},
    }
    expected = (1024, 4, steps.get(arm, {}).get(task, 160), 100)
    assert (cfg.evaluation.problems, cfg.evaluation.samples, cfg.trainer.max_steps, cfg.seed) == expected
    assert cfg.optimizer.lr == 5e-5


@pytest.mark.usefixtures("hydra_conf")
def test_the_control_of_places_differs_from_its_arm_by_the_order_of_the_scores_alone() -> None:
    (control,) = rules.PLACES.others
    own, other = (
        OmegaConf.to_container(compose("config", overrides=["+variant=asides", *rules.ARMS[arm]]))
        for arm in (rules.PLACES.arm, control)
    )
    assert other["scorer"]["inner"] == own["scorer"]
    assert {key for key in own if own[key] != other[key]} == {"scorer"}


def test_the_power_of_a_lead_by_simulation() -> None:
    power = load_script("settle", "power")
    lead = power.smallest_lead(24, 2.0)
    drawn = np.random.default_rng(0).normal(lead, 2.0, (20_000, 24))
    low = drawn.mean(1) - t.ppf(0.975, 23) * drawn.std(1, ddof=1) / 24**0.5
    assert (low > 0).mean() == pytest.approx(0.8, abs=0.01)
