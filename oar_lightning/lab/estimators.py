"""The estimators of credit: any scorer with its gate, on the same completions, timed."""

from __future__ import annotations

import copy
import dataclasses
import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from oar_lightning.credit.assign import assign_credit
from oar_lightning.credit.component import Tools, group_advantages_of
from oar_lightning.credit.gates import Gate
from oar_lightning.credit.scorers import Scorer
from oar_lightning.credit.scorers.probes import ProbeSchedule
from oar_lightning.lab.types import Estimate, Studied
from oar_lightning.types import Rollouts


@dataclass(frozen=True)
class Estimator:
    """A scorer with the gate that makes token advantages of its scores. `control`: it is there for comparison."""

    name: str
    scorer: Scorer
    gate: Gate
    control: bool = False

    @property
    def reads_groups(self) -> bool:
        return any(part.reads_groups or part.reads_step for part in (self.scorer, self.gate))

    def use(self, tools: Tools) -> None:
        self.scorer.use(tools)
        self.gate.use(tools)

    def after_warmup(self) -> Estimator:
        """The same with the probe that training has after its warm-up: the lab has no steps."""
        return dataclasses.replace(self, scorer=_after_warmup(self.scorer))

    def redrawn(self) -> Estimator | None:
        """The same estimator with another seed; None where it has none."""
        scorer = _with_seed(self.scorer)
        return None if scorer is None else dataclasses.replace(self, scorer=scorer)


def _after_warmup(scorer: Any) -> Any:
    """A scorer, or one around another, whose probe has no warm-up."""
    changed = {}
    if isinstance(probe := getattr(scorer, "probe", None), ProbeSchedule) and probe.warmup_steps:
        changed["probe"] = dataclasses.replace(probe, warmup_steps=0)
    if hasattr(scorer, "inner") and (inner := _after_warmup(scorer.inner)) is not scorer.inner:
        changed["inner"] = inner
    return _with(scorer, **changed) if changed else scorer


def _with_seed(scorer: Any) -> Any:
    """A copy of a scorer, or of the scorer that it is around, with another seed; None where there is no seed."""
    changed = {}
    if hasattr(scorer, "inner") and (inner := _with_seed(scorer.inner)) is not None:
        changed["inner"] = inner
    if isinstance(getattr(scorer, "seed", None), int):
        changed["seed"] = scorer.seed + 1
    return _with(scorer, **changed) if changed else None


def _with(scorer: Any, **changed: Any) -> Any:
    """A copy of a scorer with other attributes."""
    copied = copy.copy(scorer)
    for name, value in changed.items():
        object.__setattr__(copied, name, value)  # it may be frozen
    return copied


def estimate(estimator: Estimator, model: Any, studied: Studied) -> Estimate:
    """What an estimator says of the completions. An estimator with a seed is asked a second time with another one.

    Raises:
        ValueError: where the scorer raises, or returns something that is no scores.
    """
    started = time.perf_counter()
    first = _score(estimator, model, studied, all_rows(studied))
    seconds = time.perf_counter() - started
    second, redrawn = None, estimator.redrawn()
    if redrawn is not None and _draws(redrawn, model, studied, first.scores):
        second = _score(redrawn, model, studied, all_rows(studied)).scores
    return dataclasses.replace(first, seconds=seconds, again=second)


def scores_again(estimator: Estimator, studied: Studied) -> Callable[[Any, Rollouts], Tensor]:
    """A function that asks the estimator once more: (model, the studied rollouts, perhaps changed) -> scores [B S]."""

    def score(model: Any, rollouts: Rollouts) -> Tensor:
        changed = dataclasses.replace(studied, rollouts=rollouts)
        return _score(estimator, model, changed, all_rows(changed)).scores

    return score


def _draws(redrawn: Estimator, model: Any, studied: Studied, scores: Tensor) -> bool:
    """Whether another seed changes the scores of the first problem that has any: many a scorer has a seed and draws nothing."""
    scored = scores.nan_to_num(1.0).ne(0).any(1).tolist()
    first = next((problem for problem, some in zip(studied.problem, scored, strict=True) if some), None)
    rows = [row for row in all_rows(studied) if studied.problem[row] == first]
    if not rows:
        return False
    found = _score(redrawn, model, studied, rows).scores[rows]
    rounding = 1e-6 * float(found.abs().nan_to_num(0.0).max())
    return not torch.allclose(found, scores[rows], rtol=1e-5, atol=rounding, equal_nan=True)


def all_rows(studied: Studied) -> list[int]:
    return list(range(len(studied.rollouts)))


def _score(estimator: Estimator, model: Any, studied: Studied, rows: list[int]) -> Estimate:
    """An estimate whose scores are 0 in other rows."""
    rollouts, scorer = studied.rollouts, estimator.scorer
    scores = advantages = torch.zeros(0)
    kept, work = rollouts.response_mask.clone(), 0.0
    for number, (part_rows, part) in enumerate(_parts(estimator, studied, rows)):
        credit = assign_credit(model, part, scorer, estimator.gate, everything=True)
        if not number:
            scores, advantages = (x.new_zeros(rollouts.token_ids.shape) for x in (credit.importance, credit.advantages))
        columns = rollouts.columns(part_rows)
        scores[part_rows, columns] = credit.importance
        advantages[part_rows, columns] = credit.advantages
        if credit.loss_mask is not None:
            kept[part_rows, columns] &= credit.loss_mask
        work += scorer.metrics.get("forward_equivalents", math.nan) * int(part.attention_mask.sum())
    if silent := _silent(estimator, studied, rows):
        advantages[silent], kept[silent] = 0.0, rollouts.response_mask[silent]
    return Estimate(
        name=estimator.name,
        scores=scores,
        advantages=advantages,
        signed=scorer.signed,
        seconds=0.0,
        forward_equivalents=work / max(1, int(rollouts.attention_mask[rows].sum())),
        loss_mask=kept if estimator.gate.masks_loss or scorer.masks_loss else None,
        control=estimator.control,
    )


def _silent(estimator: Estimator, studied: Studied, rows: list[int]) -> list[int]:
    """The rows that have no token advantage in training either: of problems none of whose completions has an advantage, but
    where scorer or gate read these, too."""
    if estimator.scorer.reads_all_rows or estimator.gate.reads_all_rows:
        return []
    heard = {problem for problem, a in zip(studied.problem, group_advantages_of(studied.rollouts).tolist(), strict=True) if a}
    return [row for row in rows if studied.problem[row] not in heard]


def _parts(estimator: Estimator, studied: Studied, rows: list[int]) -> Iterator[tuple[Tensor, Rollouts]]:
    """What is scored at once: a problem's completions where scorer or gate read them together, else all."""
    groups = [rows]
    if estimator.reads_groups:
        numbers = dict.fromkeys(studied.problem[row] for row in rows)
        groups = [[row for row in rows if studied.problem[row] == number] for number in numbers]
    for group in groups:
        index = torch.tensor(group, device=studied.rollouts.token_ids.device)
        part = studied.rollouts.select(index)
        yield index, dataclasses.replace(part, group_size=len(group) if estimator.reads_groups else 1)
