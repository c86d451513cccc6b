"""Every sweep file opens with its command, and all that it names composes, passes the checks and builds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hydra._internal.config_search_path_impl import ConfigSearchPathImpl
from hydra.core.global_hydra import GlobalHydra
from hydra.core.object_type import ObjectType
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.plugins import Plugins
from hydra.plugins.launcher import Launcher
from omegaconf import OmegaConf
from optuna import create_study
from optuna.distributions import CategoricalDistribution, IntUniformDistribution, LogUniformDistribution, UniformDistribution
from optuna.samplers import RandomSampler
from support.composing import composed_whole, settings

from hydra_plugins.oar_sweeps.grid import CheckGrid
from hydra_plugins.oar_sweeps.search_path import SweepsSearchPath, SweepsSource
from oar_lightning.common.config_check import ConfigError
from oar_lightning.common.paths import conf_dir, sweeps_dir
from oar_lightning.credit.scorers import OarG, OarP, Oracle
from oar_lightning.sweep.multirun import _open, _plan, check_examples
from oar_lightning.sweep.search_space import SearchSpace
from oar_lightning.training.step_log import STEP_PHASES

NAMES = sorted(path.stem for path in sweeps_dir().glob("*.yaml"))


pytestmark = pytest.mark.usefixtures("hydra_conf")


def space_of(name: str, *arguments: str) -> SearchSpace:
    return SearchSpace.of(composed_whole(f"+sweeps={name}"), [f"+sweeps={name}", *arguments])


def test_these_are_the_sweeps() -> None:
    names = "families fill gate_mode methods noise oracle pareto precision probe smoke tau_beta tau_beta_grid update_dtype"
    assert " ".join(NAMES) == names


@pytest.mark.parametrize("name", NAMES)
def test_a_sweep_opens_with_its_command(name: str) -> None:
    first, second, third = (sweeps_dir() / f"{name}.yaml").read_text().splitlines()[:3]
    assert first == "# @package _global_"
    assert second.startswith(("# python -m oar_lightning -m +experiment=", "# python -m oar_lightning -m +variant="))
    assert second.endswith(f" +sweeps={name}")
    assert third.startswith("# ")


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("every", [3, pytest.param(1, marks=pytest.mark.slow)])
def test_all_that_a_sweep_names_builds(name: str, every: int) -> None:
    experiment = "oar_p" if name == "fill" else "oar_g"
    space = space_of(name, f"+experiment={experiment}")
    for values in list(space.examples())[::every]:
        settings(*space.overrides(values))


def sizes(name: str) -> list[int]:
    return [len(choices) for choices in space_of(name).points.values()]


def test_the_searched_spaces() -> None:
    assert space_of("tau_beta").space == {"gate.tau": UniformDistribution(0.0, 1.0), "gate.beta": UniformDistribution(0.0, 4.0)}
    noise = space_of("noise").space
    assert noise["scorer.noise_std"] == LogUniformDistribution(1e-5, 1e-1)
    assert isinstance(noise["scorer.num_draws"], CategoricalDistribution)
    grid = space_of("tau_beta_grid").points
    assert (grid["gate.tau"], grid["gate.beta"]) == ([0, 0.2, 0.3, 0.4, 0.5, 0.7, 0.9, 1], [1, 2, 4])
    assert sizes("tau_beta_grid") == [1, 8, 3]
    assert sizes("probe") == [3, 3, 2]
    assert sizes("gate_mode") == [3, 5]


def test_the_arms_of_gate_mode_are_five_gates() -> None:
    space = space_of("gate_mode", "+experiment=oar_g")
    gates = [settings(*space.overrides(values)).method.gate for values in space.examples() if values["seed"] == 0]
    assert [(g.mode, g.renormalize) for g in gates] == [
        ("both", True),
        ("boost_only", True),
        ("suppress_only", True),
        ("off", True),
        ("both", False),
    ]
    assert (gates[0].tau, gates[0].beta) == (0.4, 2.0), "what an arm does not name stays"
    assert space.describe({"gate": "{mode:both,renormalize:false}"}) == {"gate.mode": "both", "gate.renormalize": False}


def test_methods_are_all_scorers_of_oars_gate_but_the_slow_references() -> None:
    there = {path.stem for path in (conf_dir() / "scorer").glob("*.yaml") if "; for gate=" not in path.read_text()}
    assert set(space_of("methods").points["scorer"]) == {name for name in there if not name.startswith("reference_")}


def test_sweeps_of_one_scorer_choose_it_whatever_the_experiment() -> None:
    for name, kind in (("noise", OarG), ("fill", OarP), ("oracle", Oracle)):
        space = space_of(name, "+experiment=grpo")
        first = next(space.examples())
        assert isinstance(settings(*[o for o in space.overrides(first) if ".fill" not in o]).method.scorer, kind)


def test_the_command_line_wins_over_the_file() -> None:
    space = space_of("tau_beta_grid", "gate.tau=choice(0.1,0.2)", "gate.beta=3", "seed=0,1")
    assert space.points == {"gate.tau": [0.1, 0.2], "seed": [0, 1]}
    assert "gate.beta=3" in space.fixed
    assert space_of("tau_beta", "gate.tau=int(interval(1, 3))").space["gate.tau"] == IntUniformDistribution(1, 3)


def test_a_grid_refuses_intervals() -> None:
    with pytest.raises(ConfigError, match=r"gate\.tau=interval\(0,1\): a grid has no intervals"):
        space_of("tau_beta_grid", "gate.tau=interval(0,1)")


@pytest.mark.parametrize(
    ("name", "package"), [("joblib", "hydra_joblib_launcher"), ("submitit_slurm", "hydra_submitit_launcher")]
)
def test_launchers_of_the_extra_compose_with_a_sweep(name: str, package: str) -> None:
    pytest.importorskip(f"hydra_plugins.{package}", reason="needs the extra: pip install -e '.[sweep]'")
    cfg = composed_whole("+sweeps=tau_beta", f"hydra/launcher={name}", "hydra.sweeper.n_jobs=4")
    assert cfg.hydra.sweeper.n_jobs == 4
    launcher = Plugins.instance()._instantiate(cfg.hydra.launcher)
    assert isinstance(launcher, Launcher)


def test_a_study_is_named_by_its_sweep_and_lies_under_the_output_root() -> None:
    cfg = composed_whole("+sweeps=tau_beta", "hydra.sweeper.study_name=mine", f"output_root={Path('elsewhere')}")
    assert cfg.hydra.sweeper.folder == "elsewhere/sweeps/mine"


def test_hydra_sees_nothing_of_the_checkout_but_the_sweeps() -> None:
    """`--help` walks through every folder that a source shows; a checkout holds environments and outputs."""
    source = SweepsSource("oar_lightning", str(sweeps_dir().parent))
    assert source.list("", None) == ["sweeps"]
    assert source.list("sweeps", ObjectType.CONFIG) == NAMES
    assert source.is_config("sweeps/smoke")
    assert (sweeps_dir().parent / "tests").is_dir()
    assert not source.is_group("tests")
    assert not source.is_config("pyproject.toml")


@pytest.mark.parametrize(("main", "there"), [(str(conf_dir()), True), ("/another/program/conf", False), (None, False)])
def test_only_this_program_gets_the_sweeps(main: str | None, there: bool) -> None:
    search_path = ConfigSearchPathImpl()
    if main is not None:
        search_path.append("main", main)
    SweepsSearchPath().manipulate_search_path(search_path)
    assert any(element.provider == "oar_lightning" for element in search_path.get_path()) is there


@pytest.mark.parametrize("sampler", ["grid", "tpe"])
@pytest.mark.parametrize(
    ("choices", "values"),
    [
        ("'{question}','Q: {question}'", ["{question}", "Q: {question}"]),
        ("'a b','c,d'", ["a b", "c,d"]),
        ("'x#1','50%'", ["x#1", "50%"]),
        (r"'\boxed{(.*)}','it\'s'", [r"\boxed{(.*)}", "it's"]),
        ("'{a:1}','choice(1,2)'", ["{a:1}", "choice(1,2)"]),
        ("2,x,1e-3,true", [2, "x", 1e-3, True]),
        ("[1,2],{a:1}", [[1, 2], None]),
    ],
)
def test_texts_of_choices_come_to_trials_as_they_are(sampler: str, choices: str, values: list[Any]) -> None:
    override = OverridesParser.create().parse_override(f"data.x=choice({choices})")
    space = SearchSpace({"data.x": override}, sampler == "grid")
    for example, value in zip(space.examples(), values, strict=True):
        (line,) = space.overrides(example)
        assert value is None or space.describe(example) == {"data.x": value}
        read = OverridesParser.create().parse_override(line)
        assert not read.is_sweep_override()


def test_examples_have_every_choice_and_both_ends_of_an_interval() -> None:
    space = space_of("tau_beta", "gate.tau=interval(0.5,1.5)", "gate.beta=choice(1,2)")
    assert list(space.examples()) == [
        {"gate.tau": 0.5, "gate.beta": 1},
        {"gate.tau": 1.5, "gate.beta": 1},
        {"gate.tau": 0.5, "gate.beta": 2},
    ]


def test_what_a_study_goes_on_with_includes_its_mlflow_experiment_but_not_its_server_or_threads() -> None:
    cfg = composed_whole("+sweeps=tau_beta", "hydra.sweeper.study_name=x")
    space = SearchSpace.of(cfg, ["+sweeps=tau_beta", "logger.experiment_name=mine"])
    configs = check_examples(space, cfg, GlobalHydra.instance().config_loader(), lambda _: None)
    assert len(configs) == len(list(space.examples()))
    kept = next(iter(configs.values()))
    assert (kept["logger.experiment_name"], kept["gate.mode"]) == ("mine", "both")
    assert not {"logger.tracking_uri", "num_threads", "output_root"} & kept.keys()


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("seed=range(3,3)", r"^seed=range\(3,3\): no value is in this range; give"),
        ("gate.tau=interval(0.6,0.2)", r"gate\.tau=interval\(0\.6,0\.2\): .*low=0\.6.*rises"),
        (
            "hydra.sweeper.objectives=[acuracy]",
            r"objectives=acuracy: trials have no final metric of this name; give one of objective, .*time/total_logprobs_s",
        ),
        (
            "hydra.sweeper.objectives=[time/total_foo_s]",
            r"objectives=time/total_foo_s: trials have no final metric of this name",
        ),
        ("hydra.sweeper.n_jobs=-1", r"n_jobs must be >= 1, the trials that run at once, got -1"),
    ],
)
def test_a_mistake_in_a_sweep_is_told_before_its_first_trial(override: str, message: str) -> None:
    of_hydra = override.startswith("hydra.")
    cfg = composed_whole("+sweeps=tau_beta", *[override] * of_hydra, "hydra.sweeper.study_name=x")
    with pytest.raises(ConfigError, match=message):
        _plan(SearchSpace.of(cfg, [override] * (not of_hydra)), cfg.hydra.sweeper, {})


@pytest.mark.parametrize(
    "metric",
    ["objective_low", "time/total_s", "time/total_cpu_s", "duration_s", *(f"time/total_{phase}_s" for phase in STEP_PHASES)],
)
def test_other_final_metrics_may_be_objectives(metric: str) -> None:
    cfg = composed_whole("+sweeps=tau_beta", f"hydra.sweeper.objectives=[{metric}]", "hydra.sweeper.study_name=x")
    assert _plan(SearchSpace.of(cfg, []), cfg.hydra.sweeper, {}).objectives[0].metric.startswith(("objective", "time/"))


@pytest.mark.parametrize(
    ("swept", "values"),
    [
        ("range(0,3)", [0, 1, 2]),
        ("range(1,8,3)", [1, 4, 7]),
        ("range(1,7,3)", [1, 4]),
        ("range(3,0,-1)", [1, 2, 3]),
        ("range(4,5)", [4]),
        ("range(0,1,0.25)", [0, 0.25, 0.5, 0.75]),
        ("range(0.5,2)", [0.5, 1.5]),
        ("range(0.3,1.0,0.3)", [0.3, 0.6, 0.9]),
        ("range(0.2,1.0,0.3)", [0.2, 0.5, 0.8]),
    ],
)
def test_a_range_ends_before_its_stop_in_a_search_as_in_a_grid(swept: str, values: list[float]) -> None:
    points = sorted(float(v) for v in space_of("tau_beta_grid", f"gate.beta={swept}").points["gate.beta"])
    assert points == pytest.approx(values)  # in a grid 0.3 + 0.3 + 0.3
    distribution = space_of("tau_beta", f"gate.beta={swept}").space["gate.beta"]
    sampler, study = RandomSampler(seed=0), create_study()
    drawn = {sampler.sample_independent(study, study.ask(), "gate.beta", distribution) for _ in range(60)}
    assert sorted(drawn) == pytest.approx(values)
    assert {type(value) for value in drawn} == {type(values[-1])}


def test_a_parameter_of_one_value_makes_one_job() -> None:
    space = space_of("tau_beta", "gate.beta=range(4,5)", "gate.tau=interval(0.5,0.5)", "seed=0")
    examples = list(space.examples())
    assert len(examples) == len({tuple(point.items()) for point in examples})


def test_a_study_takes_no_glob() -> None:
    cfg = composed_whole("+sweeps=tau_beta", "hydra.sweeper.study_name=x")
    with pytest.raises(ConfigError, match=r"scorer=glob\(oar_g\*\): a study takes no glob; list the names with choice"):
        SearchSpace.of(cfg, ["scorer=glob(oar_g*)"])


def test_several_sweeps_are_refused_before_the_first_job(capsys: pytest.CaptureFixture[str]) -> None:
    cfg = composed_whole("+experiment=smoke")
    OmegaConf.set_readonly(cfg, False)
    OmegaConf.set_readonly(cfg.hydra, False)
    cfg.hydra.overrides.task = ["+experiment=smoke", "+sweeps=smoke,tau_beta"]
    with pytest.raises(SystemExit) as caught:
        CheckGrid().on_multirun_start(cfg)
    assert caught.value.code == 1
    assert "+sweeps takes one sweep at a time, with its own sweeper; got +experiment=smoke" in capsys.readouterr().err


def test_a_sweep_that_mlflow_refuses_leaves_no_study(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It would refuse the corrected command, whose settings are others."""

    def refused(*_: object) -> None:
        raise ConfigError("no such experiment")

    words = ("+sweeps=tau_beta", "hydra.sweeper.study_name=x", f"logger.tracking_uri=sqlite:///{tmp_path}/mlflow.db")
    with monkeypatch.context() as patch:
        patch.setattr("oar_lightning.sweep.publish.Mlflow", refused)
        cfg = composed_whole(*words)
        with pytest.raises(ConfigError, match="no such experiment"):
            _open(SearchSpace.of(cfg, [words[0]]), [words[0]], cfg, {"": {"gate.floor": 0.1}}, tmp_path / "sweep")
    corrected = [words[0], "gate.floor=0.2"]
    cfg = composed_whole(*words)
    study, _ = _open(SearchSpace.of(cfg, corrected), corrected, cfg, {"": {"gate.floor": 0.2}}, tmp_path / "sweep")
    assert study.study.user_attrs["config"] == {"gate.floor": 0.2}, "nothing was left that would refuse it"
