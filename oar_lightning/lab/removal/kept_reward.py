"""How likely a completion's reward stays as it is when it is sampled on from a changed prefix."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from oar_lightning.common.activity import activity
from oar_lightning.common.randomness import derive_seed
from oar_lightning.common.ranges import PositiveInt, checked
from oar_lightning.credit.component import Continuations
from oar_lightning.credit.scorers.oar_p.fills import FillName, random_ids, sampled_ids
from oar_lightning.credit.scorers.oar_p.texts import Texts, texts_until_answer
from oar_lightning.credit.scorers.probes import PROBES
from oar_lightning.lab.removal.sets import Sets
from oar_lightning.policy.attention import masked_positions
from oar_lightning.policy.decoder import choose_decoder
from oar_lightning.policy.language_model import embed, scoring_mode
from oar_lightning.policy.token_budget import TokenBudget
from oar_lightning.types import Prefix, Rollouts

UNIT = 64
"""Prefixes that are continued in one call."""

MEAN: FillName = "mean_embedding"
REMEDY = "leave mean_embedding out of lab.faithfulness.fills"


@checked("")
@dataclass(frozen=True)
class KeptReward:
    """f = 1 - E |r - R|: R is a completion's reward, r that of a continuation of its changed prefix.

    With rewards of 0 and 1 it is the probability that the verdict stays: the success probability of a right completion, and
    that of failure for a wrong one. Its fall is unbiased whatever the number of continuations.

    Args:
        samples: continuations of each prefix.
        seed: of the draws, those of the fills included.
    """

    model: Any
    rollouts: Rollouts
    continuations: Continuations
    token_budget: TokenBudget
    samples: PositiveInt = 8
    seed: int = 0

    def __call__(self, sets: Sets, fill: FillName) -> Float[Tensor, " n"]:
        """The reasoning is as written but for the set, and everything after it is sampled: a direct effect on the reward."""
        columns, valid = masked_positions(self.rollouts.reasoning_mask)
        after = columns.masked_fill(~valid, -1).amax(1) + 1
        return self._continued(sets, after[sets.row], fill, "direct")

    def total_effects(self, wanted: Bool[Tensor, "B R"], fills: Sequence[FillName]) -> dict[FillName, Float[Tensor, "B R"]]:
        """f(text up to and with t) - f(the same with t replaced), everything after t sampled, by fill; NaN where not wanted.

        Both sides are sampled on from the same place, so that the length of what is sampled cancels.
        """
        columns, _ = masked_positions(self.rollouts.reasoning_mask)
        row, order = wanted.nonzero(as_tuple=True)
        alone = torch.nn.functional.one_hot(order, wanted.shape[1]).bool()
        after = columns[row, order] + 1
        written = self._continued(Sets(row, torch.zeros_like(alone)), after, "pad", "as written")
        effects = {}
        for fill in fills:
            effects[fill] = torch.full(wanted.shape, torch.nan, dtype=torch.float64, device=wanted.device)
            effects[fill][row, order] = written - self._continued(Sets(row, alone), after, fill, "total")
        return effects

    @torch.no_grad()
    def _continued(self, sets: Sets, column: Int[Tensor, " n"], fill: FillName, purpose: str) -> Float[Tensor, " n"]:
        """f of prefixes of the rows, before `column`, with sets replaced."""
        places, _ = masked_positions(self.rollouts.reasoning_mask)
        changes = bool(sets.removed.any())
        fills = fill_ids(self.model, self.rollouts, sets.row.unique(), fill, self.seed, self.token_budget) if changes else None
        bare = dataclasses.replace(
            self.rollouts, prediction_states=None, old_logprobs=None, ref_logprobs=None, sampler_logprobs=None
        )
        mean = fill == MEAN and changes
        # not the token but its embedding is changed there, so that other draws are asked for by another seed
        seed = derive_seed(self.seed, "removal", MEAN if mean else "")
        found = torch.empty(len(sets.row), dtype=torch.float64, device=sets.row.device)
        order_of_length, sampled = column.argsort(stable=True), 0  # those continued together have about as far to go
        embedding = embedded_as_mean(self.model, placeholder(self.model, bare)) if mean else contextlib.nullcontext([1])
        with activity(f"removal, {purpose}, {fill}", len(sets.row)) as advance, embedding as calls:
            for part in order_of_length.split(UNIT):
                row = sets.row[part]
                ids = bare.token_ids[row]
                if fills is not None:
                    copy, order = sets.removed[part].nonzero(as_tuple=True)
                    ids[copy, places[row[copy], order]] = fills[row[copy], order]
                used = bare.columns(row)
                rows = dataclasses.replace(bare.select(row), token_ids=ids[:, used])
                prefixes = [Prefix(i, int(c) - used.start) for i, c in enumerate(column[part].tolist())]
                continued = self.continuations(self.model, rows, prefixes, self.samples, seed)
                rewards, sampled = continued.rewards.double(), sampled + continued.sampled
                found[part] = 1 - (rewards - bare.rewards[row].to(rewards)[:, None]).abs().nanmean(1)
                advance(len(part))
        if sampled and not calls:
            raise ValueError(f"fill mean_embedding is no token, and the engine samples from a copy of the policy; {REMEDY}")
        return found


def fill_ids(
    model: Any, rollouts: Rollouts, rows: Int[Tensor, " n"], fill: FillName, seed: int, token_budget: TokenBudget
) -> Int[Tensor, "B R"]:
    """The token that replaces each reasoning token of some rows; the `placeholder` for `mean_embedding`."""
    token = placeholder(model, rollouts) if fill == MEAN else rollouts.pad_token_id
    ids = torch.full_like(masked_positions(rollouts.reasoning_mask)[0], token)
    if fill in ("pad", MEAN) or not len(rows):
        return ids
    texts = texts_until_answer(rollouts.select(rows), PROBES["answer_joint"])
    with scoring_mode(model):
        decoder = choose_decoder(model)

        def draw(chunk: list[int]) -> Tensor:
            part: Texts = texts.select(torch.tensor(chunk, device=rows.device))
            drawn = random_ids(model, part, seed) if fill == "random_token" else sampled_ids(model, decoder, part, seed)
            columns, valid = masked_positions(part.reasoning)
            return drawn.gather(1, columns).masked_fill(~valid, rollouts.pad_token_id)

        for chunk, drawn in token_budget.run_in_chunks(texts.lengths(), draw):
            ids[rows[chunk], : drawn.shape[1]] = drawn
    return ids


def placeholder(model: Any, rollouts: Rollouts) -> int:
    """A token that stands where another embedding is read: the pad token, or the last of the vocabulary that the texts do not
    hold.

    Raises:
        ValueError: where they hold all.
    """
    held = set(rollouts.token_ids[rollouts.attention_mask].unique().tolist())
    vocabulary = model.get_input_embeddings().weight.shape[0]
    for token in (rollouts.pad_token_id, *range(vocabulary - 1, -1, -1)):
        if token not in held:
            return token
    raise ValueError("fill mean_embedding takes the place of a token, and these texts hold the whole vocabulary; " + REMEDY)


@contextlib.contextmanager
def embedded_as_mean(model: Any, token: int) -> Iterator[list[int]]:
    """A token has the mean of all embeddings for input, inside the block. Yields a list that grows with each call of the
    embeddings."""
    module = model.get_input_embeddings()
    vocabulary = torch.arange(module.weight.shape[0], device=module.weight.device)
    mean = embed(model, vocabulary[None]).mean(1)
    calls: list[int] = []

    def put(_: Any, inputs: tuple[Tensor, ...], output: Tensor) -> Tensor:
        calls.append(len(inputs[0]))
        return torch.where((inputs[0] == token)[..., None], mean.to(output), output)

    hook = module.register_forward_hook(put)
    try:
        yield calls
    finally:
        hook.remove()
