"""SHEAR against numpy span by span, and what its distances must not depend on."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
import torch
from hydra.utils import instantiate
from support.fixtures import fit, make_module, tiny_policy
from support.toy import gpt2, padded, rollouts_of

from oar_lightning.common.paths import conf_dir
from oar_lightning.credit.assign import assign_credit
from oar_lightning.credit.gates import DirectGate
from oar_lightning.credit.scorers import Uniform
from oar_lightning.credit.scorers.forward_free import Shear
from oar_lightning.credit.scorers.forward_free.shear import largest_over_spans, span_count
from oar_lightning.training.slots import UpdatePlan
from oar_lightning.types import Rollouts

LENGTHS = ((6, 2), (9, 1), (3, 1), (11, 2))
"""Tokens of reasoning and answer of each completion of a group."""


def group(advantages: tuple[float, ...] = (1.0, -1.0, 1.0, -1.0), seed: int = 0, hidden: int = 5) -> Rollouts:
    rng = np.random.default_rng(seed)
    sequences = [
        {"before": [3, 4], "reasoning": rng.integers(5, 30, n).tolist(), "answer": rng.integers(30, 40, m).tolist()}
        for n, m in LENGTHS
    ]
    rollouts = rollouts_of(sequences, group_size=4, advantages=torch.tensor(advantages))
    states = torch.from_numpy(rng.normal(size=(*rollouts.token_ids.shape, hidden)))
    return dataclasses.replace(rollouts, prediction_states=states)


def with_states(rollouts: Rollouts, states: torch.Tensor) -> Rollouts:
    return dataclasses.replace(rollouts, prediction_states=states)


def transcribed(texts: list[np.ndarray], right: list[bool], width: int, stride: int) -> list[np.ndarray]:
    """The weights from the formulas: every pair of spans on its own, no tables."""

    def squared(a: np.ndarray, b: np.ndarray) -> float:
        return float(((a - b) ** 2).sum())

    tokens = [token for text in texts for token in text]
    of_pairs = sorted(squared(a, b) for i, a in enumerate(tokens) for b in tokens[:i])
    variance = of_pairs[(len(of_pairs) - 1) // 2]

    def mean(a: np.ndarray, b: np.ndarray) -> float:
        return float(np.mean([[np.exp(-squared(u, v) / (2 * variance)) for v in b] for u in a]))

    def distance(a: np.ndarray, b: np.ndarray) -> float:
        return max(0.0, mean(a, a) + mean(b, b) - 2 * mean(a, b)) ** 0.5

    def bounds(text: np.ndarray) -> list[tuple[int, int]]:
        found = [(0, min(width, len(text)))]
        while found[-1][1] < len(text):
            found.append((found[-1][0] + stride, min(found[-1][0] + stride + width, len(text))))
        return found

    weights = []
    for i, text in enumerate(texts):
        weight = np.zeros(len(text))
        opposite = [texts[j][a:b] for j in range(len(texts)) if right[j] != right[i] for a, b in bounds(texts[j])]
        for a, b in bounds(text):
            weight[a:b] = np.maximum(weight[a:b], min(distance(text[a:b], other) for other in opposite))
        weights.append(weight)
    return weights


@pytest.mark.parametrize("region", ["response", "reasoning"])
@pytest.mark.parametrize(("width", "stride"), [(1, 1), (3, 2), (4, 1), (5, 5), (50, 7)])
def test_scores_against_a_transcription(width: int, stride: int, region: Any) -> None:
    rollouts = group()
    scores = Shear(width, stride, region=region)(None, rollouts)
    mask = rollouts.response_mask if region == "response" else rollouts.reasoning_mask
    assert rollouts.prediction_states is not None
    texts = [rollouts.prediction_states[i, mask[i]].numpy() for i in range(4)]
    for i, expected in enumerate(transcribed(texts, [True, False, True, False], width, stride)):
        np.testing.assert_allclose(scores[i, mask[i]].numpy(), expected, rtol=1e-8, atol=1e-10)
    assert not scores[~mask].any()


@pytest.mark.parametrize("region", ["response", "reasoning"])
def test_transport_of_single_tokens_against_the_closed_form(region: Any) -> None:
    """A span of one token has one place to go: the Euclidean distance, whatever blurs the plan, over the group's mean norm."""
    pytest.importorskip("ot.batch", reason="the extra transport is not installed")
    rollouts = group()
    scores = Shear(1, 1, "wasserstein", epsilon=0.3, iterations=3, region=region)(None, rollouts)
    mask = rollouts.response_mask if region == "response" else rollouts.reasoning_mask
    assert rollouts.prediction_states is not None
    texts = [rollouts.prediction_states[i, mask[i]].numpy() for i in range(4)]
    scale = np.linalg.norm(np.concatenate(texts), axis=1).mean()
    sides = [np.concatenate(texts[first::2]) for first in (0, 1)]
    for i, text in enumerate(texts):
        nearest = np.linalg.norm(text[:, None] - sides[(i + 1) % 2], axis=2).min(1)
        np.testing.assert_allclose(scores[i, mask[i]].numpy(), nearest / scale, rtol=1e-9)
    assert not scores[~mask].any()


def test_widths_that_suit_the_group() -> None:
    """The longest text has 13 tokens; an eighth of 800 and more is the paper's width."""
    rollouts = group()
    assert torch.equal(Shear()(None, rollouts), Shear(8, 2)(None, rollouts))
    assert torch.equal(Shear(stride=20)(None, rollouts), Shear(8, 8)(None, rollouts))
    assert [span_count(n, 100, 25) for n in (1, 100, 101, 125, 126, 1000)] == [1, 1, 2, 2, 3, 37]


@pytest.mark.parametrize("distance", ["mmd", "wasserstein"])
def test_scaling_and_other_axes_change_nothing(distance: Any) -> None:
    """Nor does translation of all states, of which the discrepancy knows differences alone."""
    if distance == "wasserstein":
        pytest.importorskip("ot.batch", reason="the extra transport is not installed")
    rollouts, scorer = group(), Shear(4, 2, distance, epsilon=0.1)
    states = rollouts.prediction_states
    assert states is not None
    expected = scorer(None, rollouts)
    assert expected[rollouts.response_mask].std() > 0.01
    rotation = torch.linalg.qr(torch.randn(5, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64)).Q
    changed = [states * 37.0, states * 1e-3, states @ rotation] + [states + 4.0] * (distance == "mmd")
    for other in changed:
        torch.testing.assert_close(scorer(None, with_states(rollouts, other)), expected, rtol=1e-7, atol=1e-9)


def test_what_both_outcomes_wrote_weighs_nothing() -> None:
    """Row 1 gets row 0's states as far as they go; then only its own end is far."""
    rollouts = group()
    assert rollouts.prediction_states is not None
    states = rollouts.prediction_states.clone()
    states[1] = torch.where(rollouts.response_mask[0, :, None], states[0], states[1])
    scores = Shear(2, 1)(None, with_states(rollouts, states))
    assert scores[0].tolist() == [0.0] * scores.shape[1]
    counts = rollouts.response_mask.sum(1)
    of_row = scores[1, rollouts.response_mask[1]]
    assert not of_row[: counts[0] - 1].any()
    assert (of_row[counts[0] :] > 0).all()
    assert (scores[3, rollouts.response_mask[3]] > 0).all()


@pytest.mark.parametrize("advantages", [(1.0, 2.0, 0.5, 1.0), (-1.0,) * 4, (0.0,) * 4, (0.0, 1.0, 0.0, 1.0)])
def test_groups_of_one_outcome_are_grpo_bit_for_bit(advantages: tuple[float, ...]) -> None:
    rollouts, scorer = group(advantages), Shear()
    scores = scorer(None, rollouts)
    assert torch.equal(scores, rollouts.response_mask.float())
    shear, grpo = (assign_credit(None, rollouts, s, DirectGate(strength=k)) for s, k in ((scorer, 1.0), (Uniform(), 0.0)))
    assert torch.equal(shear.advantages, grpo.advantages)


def test_completions_without_an_opposite_or_without_tokens() -> None:
    """An advantage of 0 belongs to neither side, and so does a completion without reasoning."""
    rollouts = group((1.0, -1.0, 0.0, -1.0))
    scores = Shear(3, 2)(None, rollouts)
    assert (scores[2, rollouts.response_mask[2]] == 1).all()
    nothing = dataclasses.replace(rollouts, reasoning_mask=rollouts.reasoning_mask.clone())
    nothing.reasoning_mask[0] = False  # the only right one
    assert torch.equal(Shear(region="reasoning")(None, nothing), nothing.reasoning_mask.float())
    alone = dataclasses.replace(rollouts, group_size=1)
    assert torch.equal(Shear()(None, alone), rollouts.response_mask.float())


def test_padding_rows_and_blocks_of_long_texts_do_not_matter() -> None:
    """With a model that has to read the states; only mixed groups cost a pass."""
    model, rollouts = gpt2(dropout=0.0), dataclasses.replace(group(), prediction_states=None)
    expected = Shear(3, 1)(model, rollouts)
    assert torch.equal(expected > 0, rollouts.response_mask)
    wide = Shear(3, 1, token_budget=7)(model, padded(rollouts, 2, 3))
    torch.testing.assert_close(wide[:, 2:-3], expected, rtol=1e-7, atol=1e-12)
    order = torch.tensor([2, 0, 3, 1])
    turned = Shear(3, 1, token_budget=40)(model, rollouts.select(order))
    torch.testing.assert_close(turned, expected[order], rtol=1e-7, atol=1e-12)
    both = rollouts.select(torch.tensor([0, 1, 2, 3, 0, 1, 2, 3]))
    same_sign = torch.cat([both.advantages[:4], both.advantages[:4].abs()])  # type: ignore[index]
    scorer = Shear(3, 1)
    found = scorer(model, dataclasses.replace(both, advantages=same_sign))
    torch.testing.assert_close(found[:4], expected, rtol=1e-7, atol=1e-12)
    assert scorer.metrics == {"forward_equivalents": 0.5}


def test_largest_over_spans_by_hand() -> None:
    """Spans 0-3, 2-5, 4-6."""
    of_tokens = largest_over_spans(torch.tensor([3.0, 1.0, 2.0]), 7, 4, 2)
    assert of_tokens.tolist() == [3, 3, 3, 3, 2, 2, 2]
    assert largest_over_spans(torch.tensor([3.0]), 2, 9, 4).tolist() == [3, 3]


def test_what_is_refused() -> None:
    with pytest.raises(ValueError, match=r"scorer\.stride must be at most scorer\.width.*stride=5, width=4"):
        Shear(4, 5)
    with pytest.raises(ValueError, match=r"scorer\.epsilon must be finite and > 0, got 0"):
        Shear(epsilon=0.0)


@pytest.mark.parametrize("distance", ["mmd", "wasserstein"])
def test_its_experiment_trains(distance: str) -> None:
    """Two steps with the scorer and the gate of the experiment's file; the weights change what is learned."""
    from hydra import compose, initialize_config_dir

    if distance == "wasserstein":
        pytest.importorskip("ot.batch", reason="the extra transport is not installed")
    with initialize_config_dir(str(conf_dir()), version_base=None):
        cfg = compose("config", ["+experiment=shear", f"scorer.distance={distance}"])
    assert cfg.name == "shear"
    scorer, gate = instantiate(cfg.scorer), instantiate(cfg.gate)
    assert (type(scorer), type(gate), scorer.covers) == (Shear, DirectGate, "response")
    assert (scorer.solver is not None) == (distance == "wasserstein")
    update = UpdatePlan(problems=2, group_size=4)
    rows = fit(make_module(tiny_policy(), scorer, gate=gate, update=update), 2).rows
    last = rows[max(rows)]
    assert last["credit/forward_equivalents"] == 0
    assert 0 < last["credit/mass"] < 1.5
    assert last["credit/mass"] != 1
