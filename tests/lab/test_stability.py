"""Sensitivity against its definition, and layers that are shuffled and put back."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest
import torch
from scipy.stats import spearmanr
from support.removal import sequences_as_rollouts
from support.toy import gpt2

from oar_lightning.credit.scorers import Entropy, OarG, OarP, Position
from oar_lightning.lab.stability import Stability, layers_of, max_sensitivity, moved_embeddings, randomized_layers, shuffled


def embedded(model, rollouts):
    """Scores that are linear in the embeddings."""
    with torch.no_grad():
        scores = model.get_input_embeddings()(rollouts.token_ids).sum(-1).abs()
    return scores.masked_fill(~rollouts.reasoning_mask, 0.0)


def position(model, rollouts):
    return Position("late")(model, rollouts)


def test_the_largest_change_over_draws() -> None:
    model, rollouts = gpt2().eval(), sequences_as_rollouts()
    nothing = torch.zeros_like(rollouts.reasoning_mask, dtype=torch.float64)
    scorers = {"embedded": embedded, "position": position, "nothing": lambda model, rollouts: nothing}
    size, order = max_sensitivity(model, rollouts, scorers, radius=0.3, draws=3, seed=7)
    clean, moved = embedded(model, rollouts), []
    for draw in range(3):
        with moved_embeddings(model, 0.3, 7 + draw):
            moved.append(embedded(model, rollouts))
    for row in range(3):  # the last has one token of reasoning
        own = rollouts.reasoning_mask[row]
        a, others = clean[row, own].numpy(), [m[row, own].numpy() for m in moved]
        expected = max(np.linalg.norm(b - a) / np.linalg.norm(a) for b in others)
        assert size.values["embedded"][row] == pytest.approx(expected)
        assert expected > 0.02
        assert order.values["embedded"][row] == pytest.approx(max(1 - spearmanr(a, b).statistic for b in others))
    assert math.isnan(size.values["embedded"][3])
    assert size.values["position"][:3] == order.values["position"][:3] == (0.0, 0.0, 0.0)
    assert math.isnan(size.values["nothing"][0])
    assert math.isnan(order.values["nothing"][0])


def test_scores_that_are_all_the_same_have_no_order_that_could_stay() -> None:
    """Of the scores as they are; scores that come to be all the same have lost theirs."""
    model, rollouts = gpt2().eval(), sequences_as_rollouts()
    table = [p.detach().clone() for p in model.parameters()]

    def same(model, rollouts):
        return torch.full(rollouts.reasoning_mask.shape, 0.5, dtype=torch.float64)

    def lost(model, rollouts):
        as_it_is = all(torch.equal(p, q) for p, q in zip(model.parameters(), table, strict=True))
        return position(model, rollouts) if as_it_is else same(model, rollouts)

    size, order = max_sensitivity(model, rollouts, {"same": same, "position": position}, draws=2)
    measure, curve = randomized_layers(model, rollouts, {"same": same, "lost": lost, "position": position}, stages=1)
    assert size.values["same"][:3] == (0.0, 0.0, 0.0), "their size is there, and does not change"
    assert all(map(math.isnan, (*order.values["same"], *measure.values["same"], curve.outcome["same"][1])))
    assert order.values["position"][:3] == (0.0, 0.0, 0.0)
    assert measure.values["lost"][:3] == (0.0, 0.0, 0.0)
    assert measure.values["position"][:3] == (1.0, 1.0, 1.0)


def test_scores_that_are_nan_have_no_values() -> None:
    model, rollouts = gpt2().eval(), sequences_as_rollouts()

    def broken(model, rollouts):
        return embedded(model, rollouts).index_fill(0, torch.tensor([1]), math.nan)

    size, order = max_sensitivity(model, rollouts, {"broken": broken}, draws=2)
    measure, _ = randomized_layers(model, rollouts, {"broken": broken}, stages=1)
    for found in (size, order, measure):
        assert [math.isnan(v) for v in found.values["broken"]] == [False, True, False, True]


def test_what_reads_the_policy_moves_with_it_and_more_with_a_wider_radius() -> None:
    model, rollouts = gpt2(dropout=0.0).eval(), sequences_as_rollouts()
    kept = dataclasses.replace(rollouts, prediction_states=torch.full((*rollouts.token_ids.shape, 16), torch.nan))
    scorers = {"entropy": Entropy(), "oar_p": OarP(), "oar_g": OarG()}
    narrow, _ = max_sensitivity(model, kept, scorers, radius=1e-3, draws=2)
    wide, _ = max_sensitivity(model, kept, scorers, radius=0.3, draws=2)
    for name in scorers:
        for row in (0, 1):
            assert 0 < 10 * narrow.values[name][row] < wide.values[name][row]


def test_embeddings_move_by_the_radius_in_the_input_alone() -> None:
    model = gpt2().eval()
    assert model.get_input_embeddings().weight is model.get_output_embeddings().weight
    ids, table = torch.arange(40)[None], model.get_input_embeddings().weight.detach().clone()
    with moved_embeddings(model, 0.1, 0), torch.no_grad():
        steps = (model.get_input_embeddings()(ids)[0] - table).norm(dim=1)
        radius = 0.1 * float(table.norm(dim=1).mean())
        torch.testing.assert_close(steps, torch.full_like(steps, radius), rtol=1e-6, atol=0)
        assert torch.equal(model.get_output_embeddings().weight, table)
    assert torch.equal(model.get_input_embeddings()(ids)[0], table)


def test_scores_that_read_no_policy_stay_and_others_do_not() -> None:
    model, rollouts = gpt2(dropout=0.0).eval(), sequences_as_rollouts()
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    seen = []

    def entropy(model, rollouts):
        seen.append({name for name, p in model.named_parameters() if not torch.equal(p, before[name])})
        return Entropy()(model, rollouts)

    measure, curve = randomized_layers(model, rollouts, {"entropy": entropy, "position": position}, stages=5)
    assert curve.fraction == (0.0, 0.5, 1.0), "a stage for each of two layers"
    assert seen[0] == set()
    assert {name.split(".")[2] for name in seen[1]} == {"1"}
    assert {name.split(".")[2] for name in seen[2]} == {"0", "1"}
    assert all(torch.equal(p, before[name]) for name, p in model.named_parameters())
    assert measure.values["position"][:3] == (1.0, 1.0, 1.0)
    assert math.isnan(measure.values["position"][3])
    assert curve.outcome["position"] == (1.0, 1.0, 1.0)
    assert curve.outcome["entropy"][2] == pytest.approx(np.nanmean(measure.values["entropy"]))
    assert curve.outcome["entropy"][2] < 0.9


def test_weights_come_back_after_an_interruption() -> None:
    model = gpt2()
    before = [p.detach().clone() for p in model.parameters()]

    def interrupted() -> None:
        with shuffled(layers_of(model), 0):
            assert not all(torch.equal(p, q) for p, q in zip(model.parameters(), before, strict=True))
            for p, q in zip(model.parameters(), before, strict=True):
                assert torch.equal(p.flatten().sort().values, q.flatten().sort().values), "the same entries"
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert all(torch.equal(p, q) for p, q in zip(model.parameters(), before, strict=True))


def test_errors_name_the_key() -> None:
    for key, value in (("radius", 0.0), ("draws", 0), ("stages", 0), ("completions", 0)):
        with pytest.raises(ValueError, match=rf"lab\.stability\.{key} must be .*, got {value}"):
            Stability(**{key: value})

    class Odd(torch.nn.Module):
        def get_decoder(self):
            return torch.nn.Linear(1, 1)

    with pytest.raises(ValueError, match=r"Odd has no list of layers .* lab\.stability=null"):
        layers_of(Odd())
