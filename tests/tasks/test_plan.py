"""task=plan: what it prints, what it refuses, and how it exits."""

from __future__ import annotations

import re
from dataclasses import replace
from functools import cache

import pytest
import torch
from hydra import compose
from support.composing import Prepare

from oar_lightning.common.config_check import ConfigError
from oar_lightning.common.paths import conf_dir
from oar_lightning.planning import PlanConfig
from oar_lightning.planning.job import Job, plan_job
from oar_lightning.planning.memory import Plan
from oar_lightning.planning.proposal import propose
from oar_lightning.planning.scoring import FREE, continues, innermost, row_tokens
from oar_lightning.policy.pretrained import PretrainedPolicy
from oar_lightning.wiring.plan import STATES, read_job
from oar_lightning.wiring.settings import build_method

SMALL = ["update.problems=8", "rollout.max_new_tokens=24"]
"""Fewer and shorter completions, for time."""


@pytest.fixture(autouse=True)
def _composing(prepared: Prepare) -> None:
    """`prepared` has Hydra ready to compose."""


def job_of(*overrides: str) -> Job:
    cfg = compose("config", ["logger=none", *overrides])
    return read_job(cfg, PlanConfig(), build_method(cfg))


def test_a_plan_is_printed_and_nothing_is_loaded(
    prepared: Prepare, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def loaded(self: object) -> None:
        raise AssertionError("the policy was loaded")

    monkeypatch.setattr(PretrainedPolicy, "load", loaded)
    peak = prepared("+experiment=oar_g", "task=plan", *SMALL)()
    out = capsys.readouterr().out
    assert "policy chain: 344,064 parameters, 344,064 trained; precision 32-true, 1 rank(s), no sharding" in out
    assert peak is not None
    assert f"peak {peak / 1e9:.2f} GB of 72.00 GB" in out
    assert re.search(r"budgets that fit: update.token_budget=\d+ update.microbatches=1 rollout.token_budget=\d+ ", out)


@pytest.mark.slow
def test_what_does_not_fit_ends_with_1_and_budgets_that_do(prepared: Prepare, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        prepared("+experiment=oar_g", "task=plan", "plan.card_gb=0.1", *SMALL)()
    assert stopped.value.code == 1
    out = capsys.readouterr().out
    assert "does NOT fit" in out
    budgets = dict(re.findall(r"(\S+)=(\d+)", out[out.index("budgets that fit") :]))
    again = [f"{key}={value}" for key, value in budgets.items()]
    assert {"update.token_budget", "update.microbatches", "rollout.token_budget", "scorer.token_budget"} <= budgets.keys()
    prepared("+experiment=oar_g", "task=plan", "plan.card_gb=0.1", *SMALL, *again)()
    assert "does NOT fit" not in capsys.readouterr().out


@pytest.mark.slow
def test_budgets_that_are_auto_are_planned_as_proposed(prepared: Prepare, capsys: pytest.CaptureFixture[str]) -> None:
    """What does not fit in one pass of each phase fits so, and nothing larger is proposed."""
    auto = [f"{phase}.token_budget=auto" for phase in ("update", "rollout", "scorer")]
    prepared("+experiment=oar_g", "task=plan", "plan.card_gb=0.2", "update.microbatches=1", *auto)()
    out = capsys.readouterr().out
    assert "does NOT fit" not in out
    assert "update.token_budget, rollout.token_budget, scorer.token_budget set to auto: planned with these budgets" in out
    peak = float(re.findall(r"peak ([\d.]+) GB of 0.18 GB", out)[0])
    assert 0.15 < peak <= 0.18


def test_what_no_budget_makes_fit_says_so(prepared: Prepare, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        prepared("task=plan", "plan.card_gb=0.001", *SMALL)()
    out = capsys.readouterr().out
    assert "what is held in every phase (weights, gradients, optimizer) takes 0.01 GB: no budget helps" in out
    assert "too large with any budget: the update of a single completion, the generation of a single completion;" in out
    assert "budgets that fit" not in out


@pytest.mark.parametrize("ranks", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_the_cost_of_an_entropy_term_is_told(ranks: int, prepared: Prepare, capsys: pytest.CaptureFixture[str]) -> None:
    """Half of a batch's 8 x 8 completions are an optimizer step's, whatever rank has them."""
    two = ["+trainer.strategy=ddp", "trainer.devices=2"] * (ranks == 2)
    prepared("task=plan", "entropy=adaptive", "update.minibatches=2", *two, *SMALL)()
    assert "entropy: AdaptiveEntropy has all 32 completions of an optimizer step in the update," in capsys.readouterr().out
    if ranks == 1:
        prepared("task=plan", *SMALL)()
        assert "entropy:" not in capsys.readouterr().out


def test_a_scorers_reference_is_planned_as_that_of_a_kl_term() -> None:
    assert job_of("+experiment=prime", "trainer=deepspeed_zero2", "trainer.devices=4").kl
    assert not job_of("+experiment=istar").kl


SCORERS = [path.stem for path in (conf_dir() / "scorer").glob("*.yaml")]


@pytest.mark.parametrize("scorer", SCORERS)
def test_every_scorer_is_known_to_a_plan_or_refused(scorer: str) -> None:
    overrides = [f"scorer={scorer}"]
    if scorer.startswith("reference"):
        with pytest.raises(ConfigError, match="nothing bounds its passes; plan for scorer=oar_g or scorer=oar_p"):
            job_of(*overrides)
        return
    job = job_of(*overrides)
    free, planned = isinstance(innermost(job.scorer), FREE), row_tokens(job.scorer, job.batch) is not None
    assert [free, planned, continues(job.scorer)].count(True) == 1


@pytest.mark.slow
def test_proposed_budgets_are_the_largest_that_fit() -> None:
    """Held against plans made with them: the proposal fits, half as much again does not."""
    job = job_of("scorer=oar_p", "update.problems=4", "rollout.max_new_tokens=16", "data.max_prompt_tokens=16")
    room = 14e6
    proposal = propose(job, plan_job(job), room)
    assert proposal.update_tokens is not None
    assert proposal.scorer_tokens is not None

    def phases(factor: float) -> tuple[float, float]:
        update = replace(job.update, token_budget=int(factor * proposal.update_tokens), microbatches=128)
        scorer = compose(
            "config", ["logger=none", "scorer=oar_p", f"scorer.token_budget={int(factor * proposal.scorer_tokens)}"]
        )
        plan = plan_job(replace(job, update=update, scorer=build_method(scorer).scorer)).plan
        return plan.of("update"), plan.of("scoring")

    assert max(phases(1.0)) <= 1.01 * room
    assert min(phases(1.5)) > room


@pytest.mark.parametrize(
    ("overrides", "phase", "more"),
    [
        pytest.param(["update.microbatches=16"], "update", False, marks=pytest.mark.slow),
        pytest.param(["rollout.max_batch=16"], "rollout", False, marks=pytest.mark.slow),
        (["loss.kl_coef=0.1"], "update", True),
        (["update.minibatches=2"], "log-probabilities", True),
        pytest.param(
            ["optimizer.fused=null", "trainer=gpu", "trainer.precision=32-true"],
            "optimizer step",
            True,
            marks=pytest.mark.slow,
        ),
        pytest.param(
            ["+trainer.strategy=ddp", "trainer.devices=2", "update.problems=64"], "update", True, marks=pytest.mark.slow
        ),
        (["+trainer.strategy=ddp", "trainer.devices=2"], "rollout", False),
    ],
)
def test_settings_move_the_phase_that_they_concern(overrides: list[str], phase: str, more: bool) -> None:
    before, after = usual().of(phase), plan_job(job_of(*overrides)).plan.of(phase)
    assert after > before if more else after < before


@cache
def usual() -> Plan:
    """The plan of the defaults."""
    return plan_job(job_of()).plan


@pytest.mark.parametrize("precision", ["64", "64-true"])
def test_a_policy_in_float64_is_planned_in_it(precision: str) -> None:
    """Twice the bytes in every item that lasts, and passes of more than with weights of float32 (tokens' ids stay)."""
    plan = plan_job(job_of(f"trainer.precision={precision}", *SMALL)).plan
    held = {item.name: item.bytes for item in plan.items}
    assert [held[name] for name in ("weights", "gradients", "optimizer states")] == [8 * 344_064, 8 * 344_064, 16 * 344_064]
    single = {item.name: item.bytes for item in plan_job(job_of(*SMALL)).plan.items}
    assert 1.7 < held["update's pass"] / single["update's pass"] <= 2


@pytest.mark.parametrize(("name", "amsgrad"), [*((name, False) for name in STATES), ("AdamW", True), ("Adam", True)])
def test_optimizers_keep_as_many_numbers_as_planned(name: str, amsgrad: bool) -> None:
    weight = torch.nn.Parameter(torch.ones(5))
    weight.grad = torch.ones(5)
    optimizer = getattr(torch.optim, name)([weight], lr=0.1, **({"amsgrad": True} if amsgrad else {}))
    optimizer.step()
    kept = sum(value.shape == weight.shape for value in optimizer.state[weight].values() if torch.is_tensor(value))
    assert job_of(f"optimizer._target_=torch.optim.{name}", f"+optimizer.amsgrad={str(amsgrad).lower()}").states == kept


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["policy=fresh"], "policy=fresh has none; pass policy=hf"),
        (["trainer.devices=auto"], "trainer.devices=auto depends on the machine"),
        (["scorer=oar_g", "plan.answer_tokens=80"], "must be less than rollout.max_new_tokens=80"),
        (["plan.card_gb=h1000"], "must be a finite number > 0 or one of t4"),
        (["policy=hf", "policy.name=/no/such/folder"], "policy.name=/no/such/folder: no such folder"),
    ],
)
def test_what_cannot_be_planned_names_key_and_remedy(overrides: list[str], message: str, prepared: Prepare) -> None:
    with pytest.raises(Exception) as caught:  # noqa: PT011 - Hydra wraps what a target raises
        prepared("task=plan", *overrides)()
    assert message in f"{caught.value} {caught.value.__cause__}"


def test_a_reference_is_in_the_weights_own_precision() -> None:
    """It is converted as the policy is; one of a later time is a copy of the trained weights."""
    for overrides in ([], ["loss.kl_from=0.5"]):
        job = job_of("loss.kl_coef=0.04", "trainer.precision=bf16-true", *SMALL, *overrides)
        (held,) = (item for item in plan_job(job).plan.items if item.name == "reference model")
        assert held.bytes == 344_064 * 2


def test_the_budget_of_a_wrapped_scorer_has_its_own_key(prepared: Prepare, capsys: pytest.CaptureFixture[str]) -> None:
    prepared("task=plan", "scorer=shuffled", *SMALL)()
    (budget,) = re.findall(r"scorer\.\S+=\d+", capsys.readouterr().out)
    assert budget.startswith("scorer.inner.token_budget=")
    (own,) = job_of("scorer=shuffled", budget).scorer.budgets
    assert own.tokens == int(budget.partition("=")[2])


def test_a_gpu_that_may_be_there_has_the_optimizers_temporaries() -> None:
    assert [job_of(f"trainer.accelerator={kind}").whole_copy for kind in ("cpu", "auto", "gpu")] == [False, True, True]
    assert not job_of("trainer.accelerator=gpu", "+optimizer.foreach=false").whole_copy
