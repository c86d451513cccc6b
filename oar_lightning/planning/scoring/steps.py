"""Scorers by steps: information gain and its relatives, and Monte-Carlo values."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from jaxtyping import Bool
from torch import Tensor

from oar_lightning.credit.scorers import InformationGain, MonteCarlo, Scorer, TurningPoint
from oar_lightning.credit.scorers.prefix import PREFIX_DISCOUNT
from oar_lightning.credit.segments import FixedLength, Segmenter, TextCuts
from oar_lightning.planning.dry_run import completions
from oar_lightning.planning.scoring.base import Batch, DryRunInputs, changed, dry_run_inputs, full_pass, innermost, row_tokens
from oar_lightning.policy.token_budget import PASS_TOKENS
from oar_lightning.types import Continued, MathProblem, Prefix, Rollouts

CONTINUING = (MonteCarlo, TurningPoint)
"""Scorers that sample continuations, `samples` of a prefix."""

GOLD = "0"
"""The answer to a made-up problem."""


@dataclass(frozen=True)
class _LastSteps(Segmenter):
    """The last `steps` tokens as a step each: after them a completion's longest prefixes end, which take most memory."""

    steps: int

    def cuts(self, model: Any, rollouts: Rollouts, mask: Bool[Tensor, "B S"]) -> Bool[Tensor, "B S"]:
        return mask & (mask.flip(1).long().cumsum(1).flip(1) <= self.steps)


@row_tokens.register
def _prompt_and_reasoning(scorer: InformationGain, batch: Batch) -> int:
    return batch.length - batch.answer - batch.conclusion


@dry_run_inputs.register
def _information_gain_inputs(scorer: InformationGain, batch: Batch, budget: int) -> DryRunInputs:
    """The completions of one pass with as many steps as fill passes over prefixes, or a step for each token where these are
    fewer: how many a text will have is not known. Cues count a token for each of their characters."""
    full = full_pass(scorer, batch, budget)
    row, cue = _prompt_and_reasoning(scorer, batch), len(scorer.cue) if not batch.conclusion else batch.conclusion
    size = max(cue + batch.answer, -(-row // PREFIX_DISCOUNT))
    filling = -(-budget // (size * len(full.texts)))
    steps = min(row - batch.prompt, 2 * filling + PREFIX_DISCOUNT)  # some sizes round down, and more of them share a pass

    def encode(before: str, text: str) -> tuple[list[int], list[int]]:
        return [0] * len(before), [0] * batch.answer

    rows = len(full.texts)
    texts = replace(full.texts, problems=(MathProblem("", GOLD),) * rows, answers=(None,) * rows, completions=("",) * rows)
    made_up = changed(full.scorer, segments=_LastSteps(steps), reads_groups=False, baseline="none", _encode=encode)
    return DryRunInputs(made_up, replace(texts, group_size=1))


def continues(scorer: Scorer) -> bool:
    """Whether a scorer samples continuations, in batches that the settings of sampling bound."""
    return isinstance(innermost(scorer), CONTINUING)


def continuing_inputs(scorer: MonteCarlo | TurningPoint, batch: Batch) -> DryRunInputs:
    """What it runs beside continuations: passes that find unlikely or uncertain tokens, whose budget is fixed."""
    rows = min(batch.rows, max(1, PASS_TOKENS // batch.length))
    texts = completions(rows, batch.group_size, batch.prompt, batch.completion, batch.answer)
    texts = replace(texts, advantages=torch.zeros(rows))  # no group has a signal: nothing is continued
    without_text = isinstance(scorer, MonteCarlo) and isinstance(scorer.segments, TextCuts)
    segments = {"segments": FixedLength()} if without_text else {}
    return DryRunInputs(changed(scorer, **segments, _continue=_nothing_sampled), texts)


def _nothing_sampled(
    model: Any, rollouts: Rollouts, prefixes: Sequence[Prefix], samples: int, seed: int, greedy: bool = False
) -> Continued:
    return Continued(torch.zeros(len(prefixes), samples), 0, 0)
