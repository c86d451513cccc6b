"""Copies of a policy that lag behind it."""

from __future__ import annotations

import copy

import pytest
import torch
from support.toy import gpt2

from oar_lightning.credit.teachers import LaggedWeights

IDS = torch.tensor([[3, 4, 5]])


def test_weights_of_some_steps_ago() -> None:
    """Renewed at 0, 2 and 5; parameters, their gradients and the frozen ones stay what they are."""
    model, teacher = gpt2(dropout=0.0), LaggedWeights(2)
    frozen = next(iter(model.parameters())).requires_grad_(False)
    known = {}
    for step in (0, 1, 2, 3, 5):
        known[step] = copy.deepcopy(model)
        teacher.renew(model, step)
        objects = [(p, p.data.data_ptr()) for p in model.parameters()]
        with torch.no_grad():
            own = model(IDS).logits
            with teacher.inside(model):
                assert torch.equal(model(IDS).logits, known[{0: 0, 1: 0, 2: 2, 3: 2, 5: 5}[step]](IDS).logits)
            assert torch.equal(model(IDS).logits, own)
        assert all(p is q and p.data.data_ptr() == at for p, (q, at) in zip(model.parameters(), objects, strict=True))
        with torch.no_grad():
            for p in model.parameters():
                if p is not frozen:
                    p.add_(0.01 * torch.randn_like(p))
    assert len(teacher.weights) == len(list(model.parameters())) - 1


def test_an_error_inside_gives_the_weights_back() -> None:
    model, teacher = gpt2(), LaggedWeights(1)
    teacher.renew(model, 0)
    with torch.no_grad():
        model.transformer.wte.weight.mul_(2)
    expected = model.transformer.wte.weight.clone()
    with pytest.raises(IndexError), teacher.inside(model):
        model(torch.tensor([[10**6]]))
    assert torch.equal(model.transformer.wte.weight, expected)


def test_a_saved_copy_is_not_renewed_early() -> None:
    model, teacher, resumed = gpt2(), LaggedWeights(10), LaggedWeights(10)
    teacher.renew(model, 7)
    resumed.load_state_dict(copy.deepcopy(teacher.state_dict()))
    other = gpt2(seed=2)
    for step, renewed in ((16, False), (17, True)):
        resumed.renew(other, step)
        assert torch.equal(resumed.weights["transformer.wte.weight"], other.transformer.wte.weight) == renewed


def test_sharded_weights_are_refused() -> None:
    model = gpt2()
    next(iter(model.parameters())).ds_shape = (1,)
    with pytest.raises(ValueError, match=r"scorer\.teacher_every copies .* unset scorer\.teacher_every"):
        LaggedWeights(3).renew(model, 0)


def test_a_copy_for_ever_is_kept_until_it_is_forgotten() -> None:
    model, other, kept = gpt2(), gpt2(seed=2), LaggedWeights(None, "loss.kl_from")
    assert kept.state_dict() == {}
    kept.renew(model, 3)
    kept.renew(other, 10**6)
    assert torch.equal(kept.weights["transformer.wte.weight"], model.transformer.wte.weight)
    kept.load_state_dict({})
    assert not kept.weights
    kept.renew(other, 4)
    assert torch.equal(kept.weights["transformer.wte.weight"], other.transformer.wte.weight)
    kept.forget()
    assert (kept.weights, kept.step) == ({}, 0)
