"""The table of metrics and what runs log: every logged name matches one entry, and every entry is logged by something."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch
from mlflow import MlflowClient
from support.composing import Prepare
from support.fixtures import fit, make_module, make_warm_start, tiny_policy

from oar_lightning.credit.gates import DirectGate, SignedGate
from oar_lightning.credit.judges import SpanJudge
from oar_lightning.credit.scorers import AnchorStates, Capo, MonteCarlo, Oracle, Random, TurningPoint
from oar_lightning.credit.scorers.forward_free import Hicra
from oar_lightning.credit.segments import FixedLength, Sentences
from oar_lightning.data.actions import TextPattern
from oar_lightning.data.chain.credit import ChainCredit
from oar_lightning.data.task_credit import TaskErrors
from oar_lightning.evaluation.metrics import evaluation_metrics
from oar_lightning.evaluation.result import ProblemResult
from oar_lightning.objective.loss import Denominators, LossConfig, LossInputs, policy_loss
from oar_lightning.tracking.metric_table import METRICS, PLACEHOLDERS, entries_of
from oar_lightning.training.slots import UpdatePlan

LOGGED_ELSEWHERE = {
    "credit/changed_frac",  # tests/credit/gates/test_contrast.py
    "credit/implicit_accuracy",  # tests/credit/scorers/implicit/test_base.py
    "credit/implicit_grad_norm",
    "credit/implicit_kept_frac",
    "credit/implicit_loss",
    "credit/judge_calls",  # tests/credit/scorers/test_capo.py, as the next ones
    "credit/judge_failed",
    "credit/judge_tokens",
    "credit/judge_unpaid",
    "credit/judge_unreadable",
    "credit/right_guess_frac",  # tests/credit/scorers/turning_point/test_scorer.py
    "time/judge_s",
    "update/skipped_steps",  # tests/training/callbacks/test_trial_callbacks.py
    "memory/token_budget_rollout",  # tests/distributed/test_ranks.py
    "trials/complete",  # a sweep's own run: tests/sweep/test_publish.py
    "trials/failed",
    "trials/pruned",
    "best_objective",
    "benchmark/<variant>/<phase>_s",  # tests/benchmark/test_benchmark.py
    "benchmark/<variant>/step_cpu_s",
    "benchmark/<variant>/step_ratio",
}


def test_every_logged_name_matches_one_entry_and_every_entry_is_logged(
    prepared: Prepare, store: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", store)
    prepared(
        "+experiment=smoke",
        "trainer.max_steps=2",
        "loss.kl_coef=0.01",
        "entropy=explore",
        "advantage.confidence_from=0",
        "curriculum=difficulty",
        "rollout.max_new_tokens=40",
        "scorer.token_budget=auto",
        "data.max_prompt_tokens=32",
        "logger.system_metrics=true",
    )()
    logged = {name for run in MlflowClient(store).search_runs(["1"]) for name in run.data.metrics}
    assert {"objective", "Main/reward", "eval/chain/greedy", "credit/rank_stability"} <= logged
    logged |= of_a_fit() | of_a_warm_start() | of_an_evaluation_with_levels() | of_a_loss_with_vllm()
    wrong = {name: [entry.name for entry in entries_of(name)] for name in logged if len(entries_of(name)) != 1}
    assert not wrong, "a metric needs one entry in oar_lightning/tracking/metric_table.py"
    found = {entries_of(name)[0].name for name in logged}
    assert {entry.name for entry in METRICS} - found == LOGGED_ELSEWHERE


def of_a_fit() -> set[str]:
    """The built-in task's oracle, CISPO, and budgets of which one is known."""
    update = UpdatePlan(problems=2, group_size=4, token_budget="auto")
    update.budget.set_start(400)
    rows = fit(make_module(tiny_policy(), Oracle(ChainCredit()), update=update, loss=LossConfig(surrogate="cispo")), 1).rows
    bounded = fit(make_module(tiny_policy(), Random(), gate=DirectGate(region="reasoning")), 1).rows
    segments = fit(make_module(tiny_policy(), MonteCarlo(FixedLength(4), samples=1), gate=SignedGate()), 1).rows
    planning = fit(make_module(tiny_policy(), Hicra(), gate=SignedGate("add")), 1).rows
    judged = fit(make_module(tiny_policy(), Capo(SpanJudge(TaskErrors()), Sentences()), gate=SignedGate()), 1).rows
    shared = fit(make_module(tiny_policy(), AnchorStates(TextPattern()), gate=SignedGate()), 1).rows
    turned = fit(make_module(tiny_policy(), TurningPoint(rounds=1)), 1).rows
    return {*rows[1], *bounded[1], *segments[1], *planning[1], *judged[1], *shared[1], *turned[1]}


def of_a_warm_start() -> set[str]:
    return {name for row in fit(make_warm_start(tiny_policy()), 1).rows.values() for name in row}


def of_an_evaluation_with_levels() -> set[str]:
    result = ProblemResult("1", "1+1?", "2", "Level 5", "", ("2", "3"), ("2", "3"), (1, 0), (1.0, 0.0), (False, False), (0, 1))
    return {f"eval/test/{name}" for name in evaluation_metrics([result])}


def of_a_loss_with_vllm() -> set[str]:
    logprobs, mask = torch.zeros(1, 2, requires_grad=True), torch.ones(1, 2, dtype=torch.bool)
    inputs = LossInputs(
        logprobs, torch.zeros(1, 2), torch.ones(1, 2), mask, Denominators(1, 2, 2), sampler_logprobs=torch.zeros(1, 2)
    )
    return set(policy_loss(inputs, LossConfig()).metrics)


def test_the_table_reads_well() -> None:
    assert len({entry.name for entry in METRICS}) == len(METRICS)
    for entry in METRICS:
        assert entry.unit
        assert entry.meaning
        assert set(re.findall(r"<(\w+)>", entry.name)) <= set(PLACEHOLDERS)
        assert entry.when or entry.name not in LOGGED_ELSEWHERE, "a rare metric says when it is logged"


@pytest.mark.parametrize(("name", "count"), [("eval/gsm8k/pass_at_8", 1), ("eval/a/level_5/avg_at_2_low", 1), ("rewrd", 0)])
def test_names_are_found_in_the_table(name: str, count: int) -> None:
    assert len(entries_of(name)) == count
