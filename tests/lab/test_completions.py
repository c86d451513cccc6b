"""Completions that are sampled are those of the engine, once; both kinds are judged alike."""

from __future__ import annotations

import dataclasses
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from support.fixtures import built_in_policy, make_stage

from oar_lightning.answers.span import AnswerFormat
from oar_lightning.common.randomness import derive_seed
from oar_lightning.data.chain.task import ChainProblems, ChainTask
from oar_lightning.data.stream import ProblemStream
from oar_lightning.inspection.recorded import RecordedCompletion
from oar_lightning.lab.completions import UNIT, read, sample, study
from oar_lightning.lab.store import Store
from oar_lightning.lab.types import Studied
from oar_lightning.objective.advantage import AdvantageConfig, group_advantages
from oar_lightning.policy.lm_head import token_logprobs
from oar_lightning.rollout import SamplingConfig
from oar_lightning.types import MathProblem

POLICY = built_in_policy()
STAGE = make_stage(POLICY, answer=AnswerFormat())
SAMPLING = SamplingConfig(max_new_tokens=50)
PROBLEMS = ProblemStream(ChainProblems(ChainTask(min_steps=1, max_steps=1)), 0).take(UNIT + 2)


def sampled(store: Store, problems: list[MathProblem] = PROBLEMS, stage: Any = STAGE) -> Any:
    return sample(POLICY, stage, SAMPLING, problems, 2, 5, store, lambda count: None)


def test_they_are_the_engines_and_kept(tmp_path: Path) -> None:
    store = Store(tmp_path / "cache.db", "me")
    groups = sampled(store)
    seeds = [derive_seed(5, "lab", i) for i in range(UNIT)]
    drawn = STAGE.engine(POLICY.model, [STAGE.prompt.render(p) for p in PROBLEMS[:UNIT]], 2, SAMPLING, seeds)
    expected = [ids[mask].tolist() for ids, mask in zip(drawn.token_ids, drawn.response_mask, strict=True)]
    flat = [e for group in groups for e in group]
    assert [e.completion for e in flat[: 2 * UNIT]] == expected
    assert [e.recorded.truncated for e in flat[: 2 * UNIT]] == drawn.truncated.tolist()
    assert [e.recorded.problem for e in flat[::2]] == PROBLEMS
    assert len({e.recorded.id for e in flat}) == len(flat)

    class Engine:
        def __call__(self, *args: Any) -> Any:
            raise AssertionError("it is kept")

    assert sampled(store, stage=dataclasses.replace(STAGE, engine=Engine())) == groups


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Studied:
    groups = sampled(Store(tmp_path_factory.mktemp("lab") / "cache.db", "me"), PROBLEMS[:3])
    return study(POLICY, STAGE, AdvantageConfig(), groups)


def test_the_policy_has_read_them(lab: Studied) -> None:
    rollouts = lab.rollouts
    logprobs, entropy = token_logprobs(POLICY.model, rollouts.token_ids, rollouts.attention_mask, rollouts.response_mask)[:2]
    inside = rollouts.response_mask
    torch.testing.assert_close(lab.probabilities[inside], logprobs[inside].exp(), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(lab.entropy[inside], entropy[inside], rtol=1e-4, atol=1e-4)
    assert torch.equal(lab.free, rollouts.reasoning_mask & (lab.probabilities < 0.98))
    assert lab.problem == (0, 0, 1, 1, 2, 2)
    assert lab.correct == tuple(bool(r) for r in rollouts.rewards)
    expected = group_advantages(rollouts.reward_terms, STAGE.rewards.weight_vector(), 2, AdvantageConfig())
    torch.testing.assert_close(rollouts.advantages, expected.float())


def test_recorded_texts_are_judged_in_the_same_way(lab: Studied) -> None:
    texts = zip(lab.rollouts.problems, lab.rollouts.completions, strict=True)
    recorded = [RecordedCompletion(str(i), problem, text) for i, (problem, text) in enumerate(texts)]
    ended = [i for i in range(6) if not bool(lab.rollouts.truncated[i])]
    dropped: Counter[str] = Counter()
    found = study(POLICY, STAGE, AdvantageConfig(), read([recorded[i] for i in ended], POLICY, STAGE, None, dropped))
    assert found.rollouts.completions == tuple(lab.rollouts.completions[i] for i in ended)
    assert found.correct == tuple(lab.correct[i] for i in ended)
    assert not dropped


def test_what_cannot_be_studied_is_counted() -> None:
    problem = PROBLEMS[0]
    rows = [
        RecordedCompletion("long", problem, "many " * 200),
        RecordedCompletion("empty", problem, "", truncated=True),
        RecordedCompletion("one", problem, problem.solution),
        RecordedCompletion("no gold", MathProblem(problem.question, ""), problem.solution),
    ]
    dropped: Counter[str] = Counter()
    groups = read(rows, POLICY, STAGE, 150, dropped)
    assert dropped == {
        "rows of more than 150 tokens (lab.max_tokens, or the policy's limit)": 1,
        "rows with an empty, truncated completion": 1,
    }
    found = study(POLICY, STAGE, AdvantageConfig(), groups)
    assert found.correct == (True, None)
    assert found.rollouts.advantages is not None
    assert found.rollouts.advantages.tolist() == [0.0, 0.0], "alone, or without a gold answer"
