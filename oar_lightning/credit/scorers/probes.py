"""Outcome probes, which define "the model's final-answer distribution" (OAR, arXiv 2601.07408, section on outcome probes)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Annotated, Any, Literal, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from oar_lightning.common.ranges import NonNegativeInt, checked
from oar_lightning.policy.attention import ReadAt, masked_positions
from oar_lightning.policy.lm_head import head_logits

FISHER_TOKENS = 8
"""The Fisher matrix of an outcome is restricted to so many most probable tokens, which hold nearly all of its mass."""


class AnswerPlace(NamedTuple):
    """The answer tokens that a probe reads: their columns in order, padded with 0; which of these are real; the token ids."""

    columns: Int[Tensor, "N A"]
    valid: Bool[Tensor, "N A"]
    token_ids: Int[Tensor, "N A"]

    @property
    def before(self) -> Int[Tensor, "N A"]:
        """The columns whose hidden states predict the answer tokens."""
        return (self.columns - 1).clamp(min=0)

    @property
    def read_at(self) -> ReadAt:
        return self.before, self.valid

    def before_mask(self, like: Bool[Tensor, "N S"]) -> Bool[Tensor, "N S"]:
        """[N S], True at the columns of `before`."""
        rows = torch.arange(len(like), device=like.device)[:, None].expand_as(self.columns)
        mask = torch.zeros_like(like)
        mask[rows[self.valid], self.before[self.valid]] = True
        return mask

    def select(self, rows: Int[Tensor, " n"], start: int = 0) -> AnswerPlace:
        """The given rows, with columns counted from `start`."""
        return AnswerPlace((self.columns[rows] - start).clamp(min=0), self.valid[rows], self.token_ids[rows])


class Probe(ABC):
    """Computes an outcome from the logits that predict the answer, and the distance of two outcomes.

    An outcome is ``[N V]`` log-probabilities or ``[N]`` scalars. OAR-G differentiates ``gap``; OAR-P reports ``distance`` as
    the importance.
    """

    def positions(self, answer_mask: Bool[Tensor, "N S"]) -> Bool[Tensor, "N S"]:
        """The answer tokens whose predictions are read."""
        return answer_mask

    @abstractmethod
    def outcome(self, logits: Float[Tensor, "N A V"], answer_ids: Int[Tensor, "N A"], valid: Bool[Tensor, "N A"]) -> Tensor:
        """The outcome from the logits that predict the answer tokens; `valid` marks real answer tokens."""
        ...

    @abstractmethod
    def gap(self, clean: Tensor, other: Tensor) -> Float[Tensor, " N"]:
        """The difference of two outcomes that OAR-G differentiates with respect to `other`; nats."""
        ...

    def distance(self, clean: Tensor, other: Tensor) -> Float[Tensor, " N"]:
        """The distance of two outcomes, >= 0; nats."""
        return self.gap(clean, other).clamp(min=0)

    @abstractmethod
    def readings(self, clean: Tensor, outcome: Tensor, count: int) -> Float[Tensor, "N M"]:
        """At most `count` numbers computed from an outcome that carries gradient. `distance_of_shift` of their small changes
        is the distance from the clean outcome to second order. `clean`: the clean outcome, detached."""
        ...

    @abstractmethod
    def distance_of_shift(self, shift: Float[Tensor, "N M R"]) -> Float[Tensor, "N R"]:
        """The distance of outcomes whose `readings` differ by `shift`, to second order; nats."""
        ...

    def locate(self, answer_mask: Bool[Tensor, "N S"], token_ids: Int[Tensor, "N S"]) -> AnswerPlace:
        """The answer tokens of each row that the probe reads."""
        columns, valid = masked_positions(self.positions(answer_mask))
        return AnswerPlace(columns, valid, token_ids.gather(1, columns))

    def read(self, model: Any, states: Float[Tensor, "N A H"], place: AnswerPlace) -> Tensor:
        """The outcome from the final hidden states that predict the answer."""
        return self.outcome(head_logits(model, states), place.token_ids, place.valid)


class _Distribution(Probe):
    """Outcomes that are distributions, compared by KL(clean || other)."""

    def gap(self, clean: Float[Tensor, "N V"], other: Float[Tensor, "N V"]) -> Float[Tensor, " N"]:
        # sum p (log p - log q) + sum q - sum p, term by term: no term is negative, so rounding does not hide small distances
        p, change = clean.exp(), other - clean
        small = change.clamp(max=1)  # expm1 of a large change would overflow
        return torch.where(change > 1, other.exp() - p * (1 + change), p * (small.expm1() - small)).sum(-1)

    def readings(self, clean: Float[Tensor, "N V"], outcome: Float[Tensor, "N V"], count: int) -> Float[Tensor, "N M"]:
        """Log-probabilities along the leading eigenvectors of the Fisher matrix diag(p) - p p' of the most probable tokens,
        each times the root of its eigenvalue. To second order KL(p || p + dp) is 1/2 the sum of squares of their changes."""
        p, index = clean.exp().topk(min(FISHER_TOKENS, clean.shape[1]))
        fisher = torch.diag_embed(p) - p[:, :, None] * p[:, None, :]
        values, vectors = torch.linalg.eigh(fisher.double())
        directions = (vectors * values.clamp(min=0).sqrt()[:, None])[..., -count:].to(outcome.dtype)
        return (outcome.gather(1, index)[..., None] * directions).sum(1)

    def distance_of_shift(self, shift: Float[Tensor, "N M R"]) -> Float[Tensor, "N R"]:
        return shift.square().sum(1) / 2


class LastProbe(_Distribution):
    """`last` (LT-Logits): p = softmax(z_{a-1}), the distribution of the first answer token."""

    def positions(self, answer_mask: Bool[Tensor, "N S"]) -> Bool[Tensor, "N S"]:
        return answer_mask & (answer_mask.long().cumsum(1) == 1)

    def outcome(self, logits: Tensor, answer_ids: Tensor, valid: Tensor) -> Float[Tensor, "N V"]:
        return torch.log_softmax(logits[:, 0], -1)


class AnswerMeanProbe(_Distribution):
    """`answer_mean` (AS-Mean): p = softmax(mean over answer positions of the logits), answer teacher-forced."""

    def outcome(self, logits: Tensor, answer_ids: Tensor, valid: Tensor) -> Float[Tensor, "N V"]:
        weight = valid.to(logits.dtype) / valid.sum(1, keepdim=True)
        return torch.log_softmax((logits * weight[..., None]).sum(1), -1)


class AnswerJointProbe(Probe):
    """`answer_joint` (AS-Joint): phi = mean log p(answer token), a scalar."""

    def outcome(self, logits: Tensor, answer_ids: Tensor, valid: Tensor) -> Float[Tensor, " N"]:
        logprobs = torch.log_softmax(logits, -1).gather(-1, answer_ids[..., None]).squeeze(-1)
        return logprobs.masked_fill(~valid, 0.0).sum(1) / valid.sum(1)

    def gap(self, clean: Float[Tensor, " N"], other: Float[Tensor, " N"]) -> Float[Tensor, " N"]:
        return clean - other

    def distance(self, clean: Tensor, other: Tensor) -> Float[Tensor, " N"]:
        return self.gap(clean, other).abs()

    def readings(self, clean: Float[Tensor, " N"], outcome: Float[Tensor, " N"], count: int) -> Float[Tensor, "N 1"]:
        return outcome[:, None]

    def distance_of_shift(self, shift: Float[Tensor, "N 1 R"]) -> Float[Tensor, "N R"]:
        return shift[:, 0].abs()


ProbeName = Literal["last", "answer_mean", "answer_joint"]

PROBES: dict[ProbeName, Probe] = {"last": LastProbe(), "answer_mean": AnswerMeanProbe(), "answer_joint": AnswerJointProbe()}


@checked("scorer.probe")
@dataclass(frozen=True)
class ProbeSchedule:
    """The probe of each batch of rollouts.

    Args:
        name: the probe after the warm-up.
        warmup: the probe of the first `warmup_steps` batches of rollouts.
        warmup_steps: length of the warm-up in batches of rollouts; 0 for none.
    """

    name: ProbeName = "answer_mean"
    warmup: ProbeName = "last"
    warmup_steps: Annotated[NonNegativeInt, "a number of batches of rollouts"] = 0

    @property
    def idle(self) -> dict[str, str]:
        """See `Component.idle`."""
        unread = not self.warmup_steps and self.warmup != type(self).warmup
        return {f"probe.warmup={self.warmup}": "scorer.probe.warmup_steps=0"} if unread else {}

    def at(self, step: int) -> Probe:
        """The probe at a `Rollouts.step`."""
        return PROBES[self.warmup if step < self.warmup_steps else self.name]
