"""Which later tokens would change if a token were another: counterfactual passes with the head at every later token."""

from __future__ import annotations

from typing import NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from oar_lightning.credit.scorers.oar_p.counterfactual import Counterfactuals
from oar_lightning.credit.scorers.oar_p.texts import Texts
from oar_lightning.credit.scorers.probes import AnswerPlace
from oar_lightning.credit.scorers.total_effect.recursion import change_probability
from oar_lightning.policy.attention import masked_positions
from oar_lightning.policy.decoder import Past
from oar_lightning.policy.lm_head import target_logprobs


class CleanTokens(NamedTuple):
    """Texts as written: the log-probabilities of their reasoning and answer tokens (0 elsewhere), the past of all columns but
    the last, the first reasoning column of any text, and the number of tokens that went through the model."""

    texts: Texts
    logprobs: Float[Tensor, "N S"]
    past: Past
    start: int
    tokens: int


def read_tokens(counterfactuals: Counterfactuals, texts: Texts) -> CleanTokens:
    """Run the texts as they are written."""
    columns, valid = masked_positions(texts.reasoning | texts.answer)
    place = AnswerPlace(columns, valid, texts.token_ids.gather(1, columns))
    states, past, tokens = counterfactuals.run_clean(texts, place)
    found = target_logprobs(counterfactuals.model, states[valid], place.token_ids[valid], texts.temperature)
    logprobs = found.new_zeros(texts.token_ids.shape).masked_scatter(texts.reasoning | texts.answer, found)
    return CleanTokens(texts, logprobs, past, int(texts.reasoning.any(0).long().argmax()), tokens)


def token_changes(
    counterfactuals: Counterfactuals, clean: CleanTokens, wanted: Bool[Tensor, "N S"], draw: int, reach: float | None
) -> tuple[Float[Tensor, "N W W"], int]:
    """c_ts of the wanted tokens t, of those that they change with a probability above `reach`, of those that these change, and
    so on (of none with None); and the padded tokens that went through the model. W are the columns from ``clean.start`` on.

    The other rows are 0: those tokens neither are asked for nor would follow a change.
    """
    texts, start = clean.texts, clean.start
    fills = counterfactuals.fills(texts, draw)
    width = texts.token_ids.shape[1] - start
    changes = clean.logprobs.new_zeros(len(texts.token_ids), width, width)
    done = torch.zeros_like(wanted)
    tokens = counterfactuals.fill.tokens(texts)
    while wanted.any():
        tokens += _fill_rows(counterfactuals, clean, fills, wanted, changes)
        if reach is None:
            break
        done |= wanted
        wanted = texts.reasoning & ~done
        wanted[:, start:] &= changes.amax(1) > reach
    return changes, tokens


def _fill_rows(
    counterfactuals: Counterfactuals,
    clean: CleanTokens,
    fills: Float[Tensor, "N S H"],
    wanted: Bool[Tensor, "N S"],
    changes: Float[Tensor, "N W W"],
) -> int:
    """Write the rows of the wanted tokens into `changes`; the padded tokens that went through the model."""
    texts = clean.texts
    end = texts.token_ids.shape[1] - 1
    targets = texts.reasoning | texts.answer
    rows, positions = wanted.nonzero(as_tuple=True)
    widths = end - positions if counterfactuals.share_prefixes else torch.full_like(rows, end)

    def run(chunk: list[int]) -> int:
        index = torch.tensor(chunk, device=rows.device)
        row, at = rows[index], positions[index, None]
        start = end - int(widths[index].max())
        column = torch.arange(end - start, device=rows.device).expand(len(row), -1)
        later = targets[row, start + 1 :] & (column + start >= at)
        states = counterfactuals.masked_states(texts, clean.past, fills, row, at, start, (column, torch.ones_like(later)))
        copy, before = later.nonzero(as_tuple=True)
        target = before + start + 1
        asked = texts.token_ids[row[copy], target]
        found = target_logprobs(counterfactuals.model, states[copy, before], asked, texts.temperature)
        changed = change_probability(clean.logprobs[row[copy], target], found)
        changes[row[copy], at[copy, 0] - clean.start, target - clean.start] = changed
        return column.numel()

    return counterfactuals.run_each(widths, end, run)
