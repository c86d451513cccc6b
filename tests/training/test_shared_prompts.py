"""Prompts that are run once, against passes of whole rows through the modules of `transformers`."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch
from support.decoders import FAMILIES, random_model
from support.fixtures import fit, make_module, tiny_policy, weights
from support.toy import rollouts_of
from torch import Tensor

from oar_lightning.credit.scorers import Random
from oar_lightning.policy.attention import BLOCK
from oar_lightning.policy.decoder import PlainDecoder
from oar_lightning.policy.lm_head import token_logprobs
from oar_lightning.training import shared_prompts
from oar_lightning.training.shared_prompts import SharedPrompts, distinct_prompts, worth_sharing
from oar_lightning.training.slots import UpdatePlan
from oar_lightning.types import Rollouts

PROMPTS = [[7, 8, 9, 10, 11, 12], [7, 8, 9], [13, 14, 15, 16], [14, 15, 16]]
"""Two pairs of which one's end is the other's: a prompt is told by its length, too."""


def rollouts(prompts: list[list[int]] = PROMPTS, group: int = 4, longest: int = 7) -> Rollouts:
    """Left-padded prompts with completions of several lengths, the last of each group the same as its first."""
    rng = torch.Generator().manual_seed(3)
    lengths = torch.randint(1, longest + 1, (len(prompts) * group,), generator=rng).tolist()
    own = [torch.randint(40, (length,), generator=rng).tolist() for length in lengths]
    own[group - 1 :: group] = own[::group]
    return rollouts_of([{"before": prompts[i // group], "reasoning": tokens, "answer": []} for i, tokens in enumerate(own)])


def gradients(model: Any) -> dict[str, Tensor]:
    """Those that backward passes have left, which then are cleared."""
    found = {name: p.grad.clone() for name, p in model.named_parameters() if p.requires_grad}
    model.zero_grad()
    return found


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("passes", [[16], [5, 11], [1, 6, 2, 7]], ids=["one pass", "two", "four"])
@pytest.mark.parametrize("frozen", [False, True], ids=["all learn", "the first layer is frozen"])
def test_log_probabilities_and_their_gradient_are_those_of_whole_rows(family: str, passes: list[int], frozen: bool) -> None:
    """In random order, so that every pass has rows of several prompts; and with rows of the batch that no pass has."""
    model, batch = random_model(family, torch.float64), rollouts([*PROMPTS, [17, 18]])
    if frozen:
        model.get_input_embeddings().requires_grad_(False)
        model.model.layers[0].requires_grad_(False)
    order = torch.randperm(16, generator=torch.Generator().manual_seed(4))
    factors = torch.randn(batch.token_ids.shape, generator=torch.Generator().manual_seed(5), dtype=torch.float64)
    whole = batch.select(order)
    expected, _ = token_logprobs(model, whole.token_ids, whole.attention_mask, whole.response_mask)
    (expected * factors[order][:, batch.columns(order)]).sum().backward()
    wanted = gradients(model)

    prompts = SharedPrompts(model, distinct_prompts(batch, order), len(passes))
    assert len(prompts.copies[0]) == len(PROMPTS)
    found = {}
    for rows in order.split(passes):  # each forward pass with its backward pass, as a step makes them
        part = batch.select(rows)
        states = prompts.states(part, rows)
        logprobs, _ = token_logprobs(model, part.token_ids, part.attention_mask, part.response_mask, states=states)
        found |= {row: logprobs[i][part.response_mask[i]].detach() for i, row in enumerate(rows.tolist())}
        (logprobs * factors[rows][:, batch.columns(rows)]).sum().backward()
    own = gradients(model)
    for i, row in enumerate(order.tolist()):
        torch.testing.assert_close(found[row], expected[i][whole.response_mask[i]].detach(), rtol=1e-5, atol=1e-5)
    for name, gradient in wanted.items():
        assert gradient.norm() > 0, name
        assert (own[name] - gradient).norm() <= 1e-4 * gradient.norm(), name


def tokens_run_once(*args: Any) -> int:
    prompts = worth_sharing(*args)
    return 0 if prompts is None else prompts.tokens


def test_tokens_of_the_prompts_are_counted_once_and_only_where_that_pays() -> None:
    everything = torch.arange(16)
    batch = rollouts()
    once = len(PROMPTS) * 5  # all columns of the longest but the last
    assert tokens_run_once(batch, everything, 1, None) == once
    assert tokens_run_once(batch, everything, 1, 2 * once) == once
    assert not tokens_run_once(batch, everything, 1, 2 * once - 1), "a pass would have less room than the prompts"
    assert not tokens_run_once(batch, everything, 9, None), "the prompts hold more than several of nine passes"
    assert not tokens_run_once(batch, everything[::4], 1, None), "one completion a prompt"
    assert not tokens_run_once(batch, everything[:0], 1, None)
    assert not tokens_run_once(rollouts([[7]] * 4), everything, 1, None), "one token, whose state predicts the first"
    assert not tokens_run_once(rollouts(longest=60), everything, 1, None), "most tokens are the completions'"
    long = [list(range(20)) * 60]
    assert tokens_run_once(rollouts(long, 16, BLOCK), everything, 1, None)
    assert not tokens_run_once(rollouts(long, 16, 8 * BLOCK), everything, 1, None), "attention with a mask is too dear"
    gap = batch.attention_mask.clone()
    gap[0, 3] = False
    assert not tokens_run_once(dataclasses.replace(batch, attention_mask=gap), everything, 1, None), (
        "a row with a gap between its tokens"
    )


SETTINGS: dict[str, dict[str, Any]] = {
    "one pass": {},
    "passes": {"microbatches": 3},
    "a budget": {"microbatches": 5, "token_budget": 10**4},
    "two steps": {"microbatches": 2, "minibatches": 2},
}


@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS)
def test_a_step_is_that_of_whole_rows(settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """The same weights and logged loss; fewer columns go through the decoder."""
    results, columns = [], []
    read = PlainDecoder.read

    def counted(self: PlainDecoder, past: Any, inputs_embeds: Tensor, read_at: Any) -> Tensor:
        columns[-1] += inputs_embeds.shape[:2].numel()
        return read(self, past, inputs_embeds, read_at)

    monkeypatch.setattr(PlainDecoder, "read", counted)
    for least in (shared_prompts.LEAST_SAVED, 2.0):
        monkeypatch.setattr(shared_prompts, "LEAST_SAVED", least)
        columns.append(0)
        module = make_module(tiny_policy(), scorer=Random(), update=UpdatePlan(problems=2, group_size=4, **settings))
        row = fit(module, 2).rows[2]
        assert (module.prompts is not None) == (least < 1)
        results.append((weights(module), row["loss"]))
    torch.testing.assert_close(results[0][0], results[1][0], rtol=1e-4, atol=1e-6)
    assert results[0][1] == pytest.approx(results[1][1], rel=1e-4, abs=1e-6)
    assert 0 < columns[0] < 0.7 * columns[1]


@pytest.mark.parametrize("settings", [{"token_budget": "auto"}, {"compile": True}], ids=["auto", "compiled"])
def test_passes_that_may_be_made_again_or_are_compiled_are_of_whole_rows(settings: dict[str, Any]) -> None:
    module = make_module(tiny_policy(), update=UpdatePlan(problems=2, group_size=4, **settings))
    assert module.forward_pass.prompts(rollouts(), torch.arange(16), module.method) is None
