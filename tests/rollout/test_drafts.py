"""Greedy decoding that copies from known texts against the engine that does not."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch
from support.fixtures import LengthReward, make_stage, tiny_policy

from oar_lightning.policy.decoder import PlainTexts
from oar_lightning.rollout import CachedEngine, SamplingConfig
from oar_lightning.rollout.continuations import Continuer
from oar_lightning.rollout.drafts import KnownTexts
from oar_lightning.types import MathProblem, Prefix

POLICY = tiny_policy()
ENGINE = CachedEngine(POLICY.tokenizer)
GREEDY = SamplingConfig(max_new_tokens=24, temperature=0.0, keep_states=False)
RNG = torch.Generator().manual_seed(3)
PROMPTS = [torch.randint(5, 300, (length,), generator=RNG).tolist() for length in (3, 9, 1, 6)]
LIMITS = [24, 10, 1, 17]


@pytest.fixture
def passes(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, ...]]:
    """The shapes of the passes that have been made."""
    made: list[tuple[int, ...]] = []
    read = PlainTexts.read_at

    def counted(self: PlainTexts, token_ids: torch.Tensor, columns: torch.Tensor) -> Any:
        made.append(tuple(token_ids.shape))
        return read(self, token_ids, columns)

    monkeypatch.setattr(PlainTexts, "read_at", counted)
    return made


def completions(
    prompts: list[list[int]], limits: list[int], known: list[KnownTexts] | None = None, config: SamplingConfig = GREEDY
) -> list[list[int]]:
    found = ENGINE(POLICY.model, prompts, 1, config, [0] * len(prompts), limits, known)
    return [row[mask].tolist() for row, mask in zip(found.token_ids, found.response_mask, strict=True)]


def all_know(*texts: list[int]) -> list[KnownTexts]:
    known = KnownTexts()
    for text in texts:
        known.add(text)
    return [known] * len(PROMPTS)


def test_whatever_is_known_the_completions_are_the_same(passes: list[tuple[int, ...]]) -> None:
    """Nothing, other texts, the completions themselves, and these with wrong tokens at some places."""
    expected = completions(PROMPTS, LIMITS)
    assert not passes
    whole = [prompt + completion for prompt, completion in zip(PROMPTS, expected, strict=True)]
    wrong = [[token if place % 5 else 7 for place, token in enumerate(text)] for text in whole]
    other = torch.randint(5, 300, (4, 40), generator=RNG).tolist()
    counts = []
    for texts in ([], other, whole, wrong, [*wrong, *other]):
        passes.clear()
        assert completions(PROMPTS, LIMITS, all_know(*texts)) == expected
        counts.append(len(passes))
    assert counts[0] == 23, "one token of each text a pass"
    assert counts[2] <= 5
    assert counts[2] < counts[3] < counts[0]


def test_completions_end_where_they_would(passes: list[tuple[int, ...]], monkeypatch: pytest.MonkeyPatch) -> None:
    """An end token that was copied with what follows it in the known text."""
    free = completions(PROMPTS, LIMITS)
    end = free[0][11]
    monkeypatch.setattr("oar_lightning.rollout.cached.eos_token_ids", lambda model, tokenizer: [end])
    expected = completions(PROMPTS, LIMITS)
    assert expected[0] == free[0][: free[0].index(end) + 1]
    assert completions(PROMPTS, LIMITS, all_know(PROMPTS[0] + free[0])) == expected
    assert passes


def test_rows_that_are_many_are_read_in_fewer_columns(passes: list[tuple[int, ...]]) -> None:
    expected = completions(PROMPTS[:1] * 60, [24] * 60)
    known = all_know(PROMPTS[0] + expected[0])[:1] * 60
    assert completions(PROMPTS[:1] * 60, [24] * 60, known) == expected
    assert max(rows * columns for rows, columns in passes) <= 160


@pytest.mark.parametrize("bound", [{"max_batch": 3}, {"token_budget": 60}, {"token_budget": "auto"}])
def test_each_row_copies_from_its_own_texts_in_every_batch(
    bound: dict[str, Any], passes: list[tuple[int, ...]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where a batch does not fit into memory and is made again in parts. Texts of other rows would draft wrong tokens."""
    prompts, limits = [*PROMPTS, PROMPTS[1]], [*LIMITS, 7]
    config = dataclasses.replace(GREEDY, **bound)
    expected = completions(prompts, limits)
    known = []
    for prompt, completion in zip(prompts, expected, strict=True):
        known.append(KnownTexts())
        known[-1].add(prompt + completion)
    read, failures = PlainTexts.read_at, [1 if "auto" in bound.values() else 0]

    def fails_once(self: PlainTexts, token_ids: torch.Tensor, columns: torch.Tensor) -> Any:
        if failures[0]:
            failures[0] -= 1
            raise torch.OutOfMemoryError("no memory")
        return read(self, token_ids, columns)

    monkeypatch.setattr(PlainTexts, "read_at", fails_once)
    assert completions(prompts, limits, known, config) == expected
    assert not failures[0]
    if "auto" in bound.values():
        assert config.budget.tokens is not None
    assert len(passes) <= 12, "each batch goes on as it is known to"


def test_the_text_that_came_last_is_copied() -> None:
    known = KnownTexts()
    assert not known
    known.add([1, 2, 3, 4, 5])
    known.add([9, 1, 2, 3, 6])
    assert list(known.after([0, 1, 2, 3], 5)) == [6]
    assert list(known.after([2, 3, 4], 5)) == [5]
    assert not known.after([2, 3], 5)
    assert not known.after([1, 2, 3], 0)
    known.add([1, 2])
    assert list(known.after([1, 2, 3], 1)) == [6]


def test_continuations_copy_from_earlier_ones_of_the_same_rollouts(passes: list[tuple[int, ...]]) -> None:
    stage = make_stage(POLICY, LengthReward())
    sampling = SamplingConfig(max_new_tokens=20)
    problems = [MathProblem("1 + 2 + 3 =", "6"), MathProblem("12 - 5 =", "7")]
    rollouts, others = (stage(POLICY.model, problems, 2, sampling, seeds) for seeds in ([1, 2], [3, 4]))
    begin = int(rollouts.response_mask.any(0).nonzero()[0])
    prefixes = [Prefix(row, begin + column) for row in range(4) for column in (0, 2, 5)]
    continuer = Continuer(stage, sampling)

    def values(continuer: Continuer, chosen: list[Prefix]) -> list[float]:
        return continuer(POLICY.model, rollouts, chosen, 1, 0, greedy=True).rewards[:, 0].tolist()

    expected = values(Continuer(stage, sampling), prefixes)
    assert values(continuer, prefixes[::3]) == expected[::3]
    assert not passes
    assert values(continuer, prefixes) == expected
    alike = len(passes)
    assert 0 < alike < 19, "prompts at least are continued as they were"
    continuer(POLICY.model, others, prefixes[:1], 1, 0, greedy=True)
    assert len(passes) == alike, "of other rollouts nothing is known"
