"""The benchmark: results of a small run, and its page."""

from __future__ import annotations

import dataclasses
import itertools
import json
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from support.commands import run
from support.composing import Prepare
from support.fixtures import TASK, make_module, tiny_policy

from oar_lightning.benchmark import BenchmarkConfig, ConfiguredWorkload, RandomShape, RandomWorkload
from oar_lightning.benchmark.phases import IN_A_STEP, TIMED_PHASES, phases_of_step
from oar_lightning.benchmark.report import (
    by_variant,
    floors_table,
    phase_table,
    quietness,
    read_results,
    scoring_table,
    write_report,
)
from oar_lightning.benchmark.summary import Measurement, Need, PhaseResult, PhaseTime, summarise
from oar_lightning.benchmark.work import Rates, Work
from oar_lightning.common.config_check import ConfigError
from oar_lightning.credit.scorers import Uniform
from oar_lightning.data.chain.task import ChainProblems
from oar_lightning.data.stream import ProblemStream
from oar_lightning.rollout import SamplingConfig
from oar_lightning.training.slots import Slot, UpdatePlan

SMALL = RandomShape(
    hidden_size=16, intermediate_size=24, layers=1, heads=2, kv_heads=1, vocab_size=50, prompt=6, completion=20, prompts=2,
    group_size=2, conclusion=3, answer=2,
)  # fmt: skip


def test_a_random_workload_has_completions_of_full_length() -> None:
    workload = RandomWorkload(SMALL, torch.device("cpu"))
    rollouts = workload.judge(workload.sample(0), 0)
    assert rollouts.token_ids.shape == (4, 26)
    assert rollouts.response_mask.sum(1).tolist() == [20] * 4
    assert rollouts.reasoning_mask.sum(1).tolist() == [15] * 4
    assert rollouts.answer_mask[:, -2:].all()
    assert rollouts.answer_mask.sum() == 8
    assert torch.equal(workload.judge(workload.sample(0), 0).token_ids, rollouts.token_ids)
    assert not torch.equal(workload.sample(1).token_ids, rollouts.token_ids)
    assert rollouts.rewards.tolist() == [0, 1, 0, 1]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"repeats": 0}, r"benchmark\.repeats must be >= 1"),
        ({"tries": 0}, r"benchmark\.tries must be >= 1"),
        ({"patience": -1.0}, r"benchmark\.patience must be .* >= 0"),
        ({"warmup": 0}, r"benchmark\.warmup is .* and must be >= 1"),
        ({"variants": {"oar_g": Uniform()}}, "benchmark.variants must include grpo"),
    ],
)
def test_bad_settings_name_their_key(change: dict[str, object], message: str) -> None:
    settings = {"preset": "x", "variants": {"grpo": Uniform()}} | change
    with pytest.raises(ValueError, match=message):
        BenchmarkConfig(**settings)


@pytest.mark.parametrize(
    ("key", "value"),
    [("group_size", 1), ("completion", 5), ("kv_heads", 3), ("heads", 5), ("layers", 0), ("dtype", "float8")],
)
def test_bad_shapes_name_their_key(key: str, value: object) -> None:
    import dataclasses

    with pytest.raises(ValueError, match=rf"benchmark\.shape\.{key}"):
        dataclasses.replace(SMALL, **{key: value})


def result(variant: str, phase: str, seconds: float, ratio: float | None = None) -> PhaseResult:
    return PhaseResult(
        *("p", variant, phase, seconds, 1.5 * seconds, seconds / 4, 2**20, 3.0, seconds / 2, seconds / 1.25, 1.5),
        product_seconds=0.6 * seconds,
        step_ratio=ratio,
    )


def measured(results: list[PhaseResult], disturbed: int = 0, steps: int = 10) -> Measurement:
    return Measurement(results, Rates(1e11, 5e10, 2e10), steps, 2, disturbed)


def test_how_lucky_a_method_was_with_what_all_do_alike_is_not_in_its_ratio() -> None:
    """Three rounds of two methods, by hand: rollouts take what they will, scoring 0 or 2 s, an update 4 or 5 s."""

    def steps(rollouts: list[float], scoring: float, update: float) -> list[dict[str, PhaseTime]]:
        found = []
        for rollout in rollouts:
            seconds = {"rollout": rollout, "reward": 0.0, "logprobs": 1.0, "scoring": scoring, "update": update}
            found.append({phase: PhaseTime(value, 2 * value, None) for phase, value in seconds.items()})
        return found

    timed = {"grpo": steps([1.0, 2.0, 3.0], 0.0, 4.0), "oar_g": steps([3.0, 2.0, 5.0], 2.0, 5.0)}
    needed = {name: {phase: Need(None, Work(1.0, 1.0)) for phase in TIMED_PHASES} for name in timed}
    results = summarise("p", timed, needed, {name: [] for name in timed}, 1, Rates(1.0, 1.0, 1.0), 0)
    found = {(one.variant, one.phase): one for one in results}
    assert found["grpo", "rollout"].median_seconds == 2.0, "a phase of its own: as measured"
    assert found["oar_g", "rollout"].median_seconds == 3.0
    grpo, oar_g = found["grpo", "step"], found["oar_g", "step"]
    assert (grpo.median_seconds, oar_g.median_seconds) == (6.0, 9.0), "rollouts of 2, 2 and 4 s for both"
    assert (grpo.cpu_seconds, oar_g.cpu_seconds) == (12.0, 18.0)
    assert (oar_g.step_ratio, oar_g.step_ratio_range) == (9 / 6, (11 / 8, 9 / 6))
    assert (grpo.step_ratio, grpo.step_ratio_range) == (1.0, (1.0, 1.0))


class Recorded(torch.nn.Module):
    """Stands in for a module whose steps are timed: notes the slots that are trained."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(()))
        self.slots: list[tuple[int, int, int]] = []
        self.autocast: list[bool] = []

    def make_optimizer(self, parameters: list[torch.nn.Parameter], lr: float) -> torch.optim.Optimizer:
        return torch.optim.SGD(parameters, lr)

    def training_step(self, slot: Slot, index: int) -> torch.Tensor:
        self.slots.append((slot.inner_epoch, slot.minibatch, slot.microbatch))
        self.autocast.append(torch.is_autocast_enabled("cpu"))
        return self.weight.square()


def test_the_update_is_all_of_its_epochs_and_minibatches() -> None:
    module, plan = Recorded(), UpdatePlan(inner_epochs=2, minibatches=2, microbatches=3)
    workload = RandomWorkload(SMALL, torch.device("cpu"))
    *_, (phase, update) = phases_of_step(workload, cast(Any, module), plan, 0)
    update()
    assert phase == "update"
    assert module.slots == list(itertools.product(range(2), range(2), range(3)))


def test_passes_are_in_the_precision_of_training() -> None:
    module = Recorded()
    policy = tiny_policy()
    workload = ConfiguredWorkload(policy, *[cast(Any, None)] * 2, 1, 2, SamplingConfig(), torch.autocast("cpu", torch.bfloat16))
    assert (workload.dtype, RandomWorkload(SMALL, torch.device("cpu")).dtype) == (torch.bfloat16, torch.float32)
    *_, (_, update) = phases_of_step(workload, cast(Any, module), UpdatePlan(), 0)
    update()
    assert module.autocast == [True]


def test_several_steps_a_batch_have_their_old_log_probabilities_made() -> None:
    """In the seconds of the step: training makes them, too."""
    for minibatches in (1, 2):
        plan = UpdatePlan(problems=2, group_size=4, minibatches=minibatches)
        policy = tiny_policy()
        module = make_module(policy, update=plan, lr=1.0)
        stream = ProblemStream(ChainProblems(TASK), 0)
        workload = ConfiguredWorkload(policy, module.collector.stage, stream, 2, 4, module.method.sampling)
        before = torch.nn.utils.parameters_to_vector(module.parameters()).clone()
        for _, run_phase in phases_of_step(workload, module, plan, 0):
            run_phase()
        assert module.experience is not None
        assert (module.experience.rollouts.old_logprobs is None) == (minibatches == 1)
        assert torch.equal(torch.nn.utils.parameters_to_vector(module.parameters()), before), "weights do not change"


@pytest.mark.usefixtures("hydra_conf")
@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("loss.kl_coef=0.1", r"loss\.kl_coef=0\.1 needs a frozen reference.*set loss\.kl_coef=0"),
        ("entropy=step", r"entropy: .* task=benchmark does not time; set entropy=none"),
        ("advantage.confidence_from=0.5", r"does not time; set advantage\.confidence_from=null"),
        ("trainer.devices=2", r"trainer\.devices=2 .*; set trainer=cpu or trainer=gpu"),
        (
            "+benchmark.variants.t={_target_:oar_lightning.credit.scorers.TurningPoint,search_every:8}",
            r"benchmark\.variants\.t scores by what it has learnt from its past in training",
        ),
        (
            "+benchmark.variants.p={_target_:oar_lightning.credit.scorers.Spro}",
            r"benchmark\.variants\.p compares the policy with its past in training",
        ),
    ],
)
def test_what_a_timed_step_does_not_have_is_refused(prepared: Prepare, setting: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        prepared("task=benchmark", setting, "logger=none")


@pytest.mark.usefixtures("hydra_conf")
def test_problems_that_training_leaves_out_are_not_timed(prepared: Prepare) -> None:
    with pytest.raises(ValueError, match="prompt too long: 10000"):
        prepared("task=benchmark", "data.max_prompt_tokens=1", "logger=none", "benchmark.report=null")()


def test_scores_with_a_sign_are_timed_beside_the_others(prepared: Prepare) -> None:
    prepared("task=benchmark", "benchmark.report=null", "logger=none", "+scorer@benchmark.variants.otb=otb")  # no error


def test_tables_and_page(tmp_path: Path) -> None:
    results = [result(v, p, 0.5) for v in ("grpo", "oar_g") for p in TIMED_PHASES]
    results += [result("grpo", "step", 2.0, 1.0), result("oar_g", "step", 2.5, 1.25)]
    quiet = measured(results)
    assert phase_table(quiet, {})[2][-4:] == ["2.500", "3.750", "1.25", "-"]
    ranged = [dataclasses.replace(r, step_ratio_range=(1.1, 1.4) if r.phase == "step" else None) for r in results]
    assert phase_table(measured(ranged), {})[2][-2] == "1.25 (1.10 to 1.40)"
    bars = dict.fromkeys(by_variant(results), 1.2)
    assert [row[-1] for row in phase_table(quiet, bars)[1:]] == ["1.2 (met)", "1.2 (not met)"]
    assert [row[-1] for row in phase_table(measured(results, 3), bars)[1:]] == ["1.2 (disturbed)"] * 2, "no verdict"
    assert [row[-1] for row in phase_table(measured(results, steps=4), bars)[1:]] == ["1.2 (rounds: 2)"] * 2, "nor of two"
    assert quietness(measured(results, steps=4)).endswith("No target is judged by fewer than 3 rounds (benchmark.repeats).")
    assert quietness(quiet).startswith("10 timed steps; 2 further tries did not count")
    assert "During 3 of the steps" in quietness(measured(results, 3))
    expected = ["grpo", "0.1250", "-", "3.0", "1.50", "0.250", "2.0", "1.12", "0.300", "1.15", "1.25", "1", "-", "-"]
    assert scoring_table(quiet, {})[1] == expected
    assert floors_table(quiet)[1] == ["rollout", "0.500", "3.0", "0.250", "2.0", "0.400", "1.2", "0.300", "1.2", "1"]
    on_a_gpu = measured([dataclasses.replace(r, product_seconds=None) for r in results])
    assert scoring_table(on_a_gpu, {})[1][8:11] == [*floors_table(on_a_gpu)[1][7:9], "-"] == ["-"] * 3
    exact = [result("oar_p", p, 0.25) for p in TIMED_PHASES] + [result("oar_p", "step", 3.0, 1.5)]
    rows = scoring_table(measured(results + exact), {"grpo": 0.2, "oar_g": 0.1})
    assert [row[2] for row in rows[1:]] == ["0.2 (met)", "0.1 (not met)", "-"]
    assert [row[-2:] for row in rows[1:]] == [["2.00", "1.0"], ["2.00", "1.0"], ["1.00", "1.0"]]
    write_report(tmp_path / "r", BenchmarkConfig("p", {"grpo": Uniform()}), quiet, "the command", "a machine")
    page = (tmp_path / "r" / "README.md").read_text()
    assert "`the command`" in page
    assert "| oar_g | 0.500 | 0.500 | 0.500 | 0.500 | 0.500 | 2.500 | 3.750 | 1.25 | - |" in page
    assert (tmp_path / "r" / "steps.png").stat().st_size > 1000


@pytest.mark.slow
def test_the_command_writes_rows_for_every_variant_and_phase(tmp_path: Path) -> None:
    sizes = {"hidden_size": 16, "intermediate_size": 24, "layers": 1, "heads": 2, "kv_heads": 1, "vocab_size": 50}
    lengths = {"prompt": 6, "completion": 24, "prompts": 2, "group_size": 2}
    shape = [f"benchmark.shape.{key}={value}" for key, value in {**sizes, **lengths}.items()]
    settings = ["benchmark.repeats=1", "benchmark.output=b.json", "benchmark.report=page", "benchmark.tries=1", "logger=none"]
    done = run(tmp_path, "task=benchmark", "benchmark=authors", *shape, *settings)
    assert done.code == 0, done.shown
    rows = {(r["variant"], r["phase"]): r for r in json.loads((tmp_path / "b.json").read_text())}
    read = {(v, p): result for v, phases in read_results(tmp_path / "b.json").items() for p, result in phases.items()}
    assert {place: dataclasses.asdict(result) for place, result in read.items()} == rows
    variants = {"grpo", "oar_g", "oar_p", "oar_p_approximate", "oar_p_full", "entropy", "reference_oar_g", "reference_oar_p"}
    assert set(rows) == {(v, p) for v in variants for p in (*TIMED_PHASES, "step")}
    assert rows["grpo", "step"]["step_ratio"] == 1.0
    assert all(0 < rows["grpo", phase]["median_seconds"] < 60 for phase in (*TIMED_PHASES, "step") if phase != "scoring")
    assert all(0 < rows[v, "scoring"]["median_seconds"] < 60 for v in variants - {"grpo"})
    for variant in variants:
        clocked = [rows[variant, phase]["product_seconds"] for phase in IN_A_STEP]
        assert all(0 < seconds < 60 for seconds in clocked[-2:]) or variant == "grpo"
        parts = sum(rows[variant, phase]["gflop"] for phase in IN_A_STEP)
        assert rows[variant, "step"]["gflop"] == pytest.approx(parts)
        assert rows[variant, "step"]["roofline_seconds"] >= 0.999 * rows[variant, "step"]["floor_seconds"] > 0
    assert rows["grpo", "logprobs"]["forward_equivalents"] == 1.0
    assert rows["grpo", "scoring"]["product_seconds"] == 0.0 < rows["grpo", "update"]["product_seconds"]
    assert rows["oar_p", "scoring"]["gflop"] < rows["reference_oar_p", "scoring"]["gflop"]
    assert "reference_oar_p" in done.stdout
    assert (tmp_path / "page" / "README.md").exists()
