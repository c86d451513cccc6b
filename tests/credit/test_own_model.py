"""A model that a component trains beside the policy, against plain PyTorch."""

from __future__ import annotations

import copy
import io
from typing import Any

import pytest
import torch
from support.families import FAMILIES
from support.toy import gpt2, rollouts_of
from torch import Tensor

from oar_lightning.credit.own_model import OwnModel, check_trainer
from oar_lightning.policy.lm_head import token_logprobs
from oar_lightning.policy.pretrained import LoraSpec, checkpoint_gradients
from oar_lightning.policy.token_budget import TokenBudget
from oar_lightning.types import Rollouts

SEQUENCES = [
    {"before": [3, 4, 5], "reasoning": [8, 9, 10], "answer": [13], "tail": [1]},
    {"before": [14], "reasoning": [15, 16], "answer": [22]},
    {"before": [3], "reasoning": [8], "answer": [7]},
]
SIGNS = torch.tensor([1.0, -1.0, 0.5], dtype=torch.float64)


def own_model(lr: float = 1e-3, tokens: Any = 4096, max_norm: float = 1e9) -> OwnModel:
    return OwnModel(lr, max_norm, TokenBudget("scorer.token_budget", tokens, 4096))


def given() -> Rollouts:
    return rollouts_of(SEQUENCES)


def loss_of(rows: Tensor, logprobs: Tensor) -> Tensor:
    return (SIGNS[rows] * logprobs.double().sum(1)).sum()


def trained(own: OwnModel, steps: int = 3) -> list[tuple[Tensor, float]]:
    return [own.step(given(), loss_of) for _ in range(steps)]


def without_dropout(model: Any) -> Any:
    return copy.deepcopy(model).eval()


@pytest.mark.parametrize(("tokens", "temperature"), [(4096, 1.0), (1, 1.0), (4096, 0.7)])
def test_it_learns_as_adamw_does_and_leaves_the_policy_alone(tokens: int, temperature: float) -> None:
    """The truth is a model in eval mode, one pass over all rows, and an AdamW."""
    policy, own = gpt2(), own_model(tokens=tokens, max_norm=0.5)
    own.temperature = temperature
    for p in policy.parameters():
        p.grad = torch.full_like(p, 7.0)
    before = copy.deepcopy(policy.state_dict())
    own.begin(policy)
    expected = without_dropout(policy).requires_grad_()
    expected.zero_grad()
    optimizer = torch.optim.AdamW(expected.parameters(), lr=1e-3, weight_decay=0.0)
    rollouts = given()
    masks = rollouts.attention_mask, rollouts.response_mask
    for found, norm in trained(own):
        logprobs = token_logprobs(expected, rollouts.token_ids, *masks, temperature=temperature)[0]
        torch.testing.assert_close(found, logprobs.detach(), rtol=1e-9, atol=1e-12)
        optimizer.zero_grad()
        loss_of(torch.arange(3), logprobs).backward()
        assert norm == pytest.approx(float(torch.nn.utils.clip_grad_norm_(expected.parameters(), 0.5)), rel=1e-9)
        optimizer.step()
    after = token_logprobs(expected, rollouts.token_ids, *masks, temperature=temperature)[0]
    torch.testing.assert_close(own.logprobs(rollouts), after.detach(), rtol=1e-9, atol=1e-12)
    assert own.steps == 3
    assert all(torch.equal(value, before[name]) for name, value in policy.state_dict().items())
    assert all(bool(p.grad.eq(7.0).all()) for p in policy.parameters())
    assert policy.training


def test_memory_that_runs_out_leaves_no_part_of_a_gradient(monkeypatch: pytest.MonkeyPatch) -> None:
    """With token_budget=auto the pass is repeated in parts."""
    own, cramped = own_model(), own_model(tokens="auto")
    for one in (own, cramped):
        one.begin(gpt2())
    grad = torch.autograd.grad

    def fails(loss: Tensor, *args: Any, **kwargs: Any) -> Any:
        found = grad(loss, *args, **kwargs)
        if cramped.budget.tokens == 4096:
            raise torch.OutOfMemoryError("CUDA out of memory.")
        return found

    expected = own.step(given(), loss_of)
    monkeypatch.setattr(torch.autograd, "grad", fails)
    found = cramped.step(given(), loss_of)
    assert cramped.budget.tokens is not None
    assert cramped.budget.tokens < 4096
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(cramped.logprobs(given()), own.logprobs(given()))


def test_a_saved_state_goes_on_bit_for_bit() -> None:
    """Through a file that holds no code; also with another learning rate, which is the new run's."""
    whole, first = own_model(), own_model()
    for own in (whole, first):
        own.begin(gpt2())
    trained(whole, 4)
    trained(first, 2)
    file = io.BytesIO()
    torch.save(first.state_dict(), file)
    trained(first, 1)  # what was saved does not move along
    file.seek(0)
    state = torch.load(file, weights_only=True)
    early, late = own_model(), own_model()
    early.load_state_dict(state)
    assert early.state_dict() is state, "saved again before the first step"
    early.begin(gpt2(seed=2))
    late.begin(gpt2(seed=2))
    late.load_state_dict(state)
    for own in (early, late):
        trained(own, 2)
        assert own.steps == 4
        assert torch.equal(own.logprobs(given()), whole.logprobs(given()))
    other = own_model(lr=0.5)
    other.load_state_dict(state)
    other.begin(gpt2(seed=2))
    trained(other, 1)
    assert not torch.equal(other.logprobs(given()), first.logprobs(given()))
    assert not own_model().state_dict()
    narrower = own_model()
    narrower.load_state_dict(state)
    with pytest.raises(ValueError, match=r"other weights than this policy has; use the policy and policy\.lora of that run"):
        narrower.begin(FAMILIES["qwen2"]())


def test_adapters_alone_are_copied() -> None:
    """Frozen weights are the policy's tensors; fresh adapters change nothing."""
    torch.manual_seed(0)
    policy = LoraSpec(r=2, alpha=4, dropout=0.5).apply(FAMILIES["qwen2"]())
    own = own_model()
    own.begin(policy)
    theirs = dict(policy.named_parameters())
    for name, p in own.model.named_parameters():
        assert (p is theirs[name]) == (not theirs[name].requires_grad)
    start = own.logprobs(given())
    (found, norm), *_ = trained(own)
    torch.testing.assert_close(found, start)  # no dropout
    assert norm > 0
    assert set(own.state_dict()["weights"]) == {name for name, p in theirs.items() if p.requires_grad}


def test_checkpointed_gradients_are_the_same() -> None:
    """And layers are recomputed."""
    policy = FAMILIES["qwen2"]()
    plain, spared = own_model(), own_model()
    plain.begin(policy)
    checkpoint_gradients(policy, lora=False)
    spared.begin(policy)
    passes = []
    spared.model.model.layers[0].mlp.register_forward_pre_hook(lambda *_: passes.append(1))
    torch.testing.assert_close(spared.step(given(), loss_of), plain.step(given(), loss_of))
    assert len(passes) == 2
    torch.testing.assert_close(spared.logprobs(given()), plain.logprobs(given()))


def test_bfloat16_weights_take_steps_that_are_smaller_than_their_spacing() -> None:
    policy = gpt2().bfloat16()
    own = own_model(lr=1e-5)
    own.begin(policy)
    name, weight = next((n, p) for n, p in own.model.named_parameters() if p.ndim == 2)
    start = weight.detach().clone()
    losses = [float(loss_of(torch.arange(3), found)) for found, _ in trained(own, 10)]
    assert weight.dtype == torch.bfloat16
    moved = own.state_dict()["weights"][name] - start.float()
    assert 5e-5 < float(moved.abs().max()) < 2e-4
    assert losses[-1] < losses[0]


@pytest.mark.parametrize("lr", [1e-3, 1e-5])
def test_bfloat16_weights_go_on_bit_for_bit(lr: float) -> None:
    """At once, and after steps that are smaller than their spacing."""
    whole = own_model(lr=lr)
    whole.begin(gpt2().bfloat16())
    trained(whole, 2)
    state = copy.deepcopy(whole.state_dict())
    assert {weight.dtype for weight in state["weights"].values()} == {torch.float32}
    resumed = own_model(lr=lr)
    resumed.begin(gpt2(seed=2).bfloat16())
    resumed.load_state_dict(state)
    assert torch.equal(resumed.logprobs(given()), whole.logprobs(given()))
    for own in (whole, resumed):
        trained(own, 2)
    assert torch.equal(resumed.logprobs(given()), whole.logprobs(given()))
    assert all(torch.equal(resumed.state_dict()["weights"][n], w) for n, w in whole.state_dict()["weights"].items())


def test_autocast_reads_the_moved_weights_with_their_gradients() -> None:
    """Autocast keeps its copies of weights, of passes without gradients and before a step, for as long as the block lasts."""
    policy = gpt2().float()
    inside, outside = own_model(lr=1e-2), own_model(lr=1e-2)
    for own in (inside, outside):
        own.begin(policy)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        start = inside.logprobs(given())
        norm = inside.step(given(), loss_of)[1]
        after = inside.logprobs(given())
    expected = outside.step(given(), loss_of)[1]
    assert norm == pytest.approx(expected, rel=0.1)
    assert not torch.equal(start, after)
    torch.testing.assert_close(after, outside.logprobs(given()), rtol=0.1, atol=0.1)


def test_a_gradient_that_is_no_number_moves_nothing(caplog: pytest.LogCaptureFixture) -> None:
    own = own_model()
    own.begin(gpt2())
    before = own.logprobs(given())
    own.step(given(), lambda rows, logprobs: logprobs.sum() * torch.nan)
    assert torch.equal(own.logprobs(given()), before)
    assert own.steps == 0
    assert "its step is left out" in caplog.text


def test_dropout_is_off_wherever_a_model_keeps_its_rate() -> None:
    """GPT-2 has modules for it (see above), Qwen2 a number in its attention. The policy keeps its own."""
    policy = FAMILIES["qwen2"]()
    attention = policy.model.layers[0].self_attn
    attention.attention_dropout = 0.9
    own = own_model()
    own.begin(policy)
    expected = own.logprobs(given())
    torch.testing.assert_close(own.step(given(), loss_of)[0], expected)
    assert attention.attention_dropout == 0.9


def test_what_cannot_be_trained_is_refused() -> None:
    sharded = gpt2()
    next(iter(sharded.parameters())).ds_shape = (1,)
    with pytest.raises(ValueError, match=r"ZeRO-3 has sharded .* use trainer=deepspeed_zero2 or trainer=ddp"):
        own_model().begin(sharded)
    with pytest.raises(ValueError, match=r"weights are float16: .* use trainer\.precision=bf16-mixed or 32-true"):
        own_model().begin(gpt2().half())
    check_trainer(False, "32-true")
    with pytest.raises(ValueError, match=r"trainer\.precision=16-mixed: .* use trainer\.precision=bf16-mixed or 32-true"):
        check_trainer(False, "16-mixed")
    own = own_model()
    own.begin(gpt2().float())
    with torch.autocast("cpu", dtype=torch.float16), pytest.raises(ValueError, match=r"trainer\.precision=16-mixed: .*"):
        own.step(given(), loss_of)
