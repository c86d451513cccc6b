"""Rollouts -> token advantages: the scorer's scores, then the gate."""

from __future__ import annotations

import dataclasses
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor

from oar_lightning.credit.component import group_advantages_of, region_mask
from oar_lightning.credit.gates import Gate, checked_credit
from oar_lightning.credit.scorers.base import Scorer, checked_scores
from oar_lightning.types import Credit, Rollouts


def assign_credit(model: Any, rollouts: Rollouts, scorer: Scorer, gate: Gate, everything: bool = False) -> Credit:
    """Token advantages of rollouts with their group advantages. All ranks have to call it.

    Groups without a signal are not scored, unless scorer or gate read them, or `everything` is asked for. Gates that add to
    advantages then give them some, which no update has: see `as_taught`.
    """
    region = region_mask(rollouts, gate.region)
    scores = torch.zeros(rollouts.token_ids.shape, device=rollouts.token_ids.device)
    left_out = None
    scorer.measure_anew()
    rows = rows_to_score(rollouts, scorer, gate, everything)
    if len(rows):
        part = rollouts.select(rows)
        found = checked_scores(scorer(model, part), part, region_mask(part, gate.region), scorer.name)
        scores = scores.to(found.dtype)
        scores[rows, rollouts.columns(rows)] = found
        if scorer.left_out is not None:  # of a completion that could not be scored nothing is left out
            left_out = torch.zeros_like(region)
            left_out[rows, rollouts.columns(rows)] = scorer.left_out & found.isfinite().all(1, keepdim=True)
    credit = checked_credit(gate(scores.masked_fill(~region, 0.0), rollouts), rollouts, type(gate).__name__)
    if left_out is None:
        return credit
    kept = rollouts.response_mask if credit.loss_mask is None else credit.loss_mask
    return dataclasses.replace(credit, loss_mask=kept & ~left_out)


def as_taught(credit: Credit, rollouts: Rollouts, taught: Int[Tensor, " n"]) -> Credit:
    """The credit of completions that were all scored, as an update has it: those that are not `taught` (see `rows_to_score`)
    have advantage 0 and all of their tokens in the loss, whatever the gate makes of their scores."""
    quiet = torch.ones(len(rollouts), 1, dtype=torch.bool, device=credit.advantages.device)
    quiet[taught] = False
    mask = credit.loss_mask
    return dataclasses.replace(
        credit,
        advantages=credit.advantages.masked_fill(quiet, 0.0),
        loss_mask=None if mask is None else torch.where(quiet, rollouts.response_mask, mask),
    )


def rows_to_score(rollouts: Rollouts, scorer: Scorer, gate: Gate, everything: bool = False) -> Int[Tensor, " n"]:
    """The rows of groups in which any completion has an advantage; all rows with `everything`, or where scorer or gate read
    them."""
    groups = group_advantages_of(rollouts).ne(0).view(-1, rollouts.group_size).any(1)
    everything = everything or scorer.reads_all_rows or gate.reads_all_rows
    return (groups | everything).repeat_interleave(rollouts.group_size).nonzero().flatten()
