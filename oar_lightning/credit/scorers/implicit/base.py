"""What implicit process rewards share: a model phi that learns outcomes, and its log-ratios."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any, ClassVar, Literal

import torch
from jaxtyping import Bool, Float, Shaped
from torch import Tensor

from oar_lightning.credit.component import Tools
from oar_lightning.credit.own_model import OwnModel, check_dtype, check_trainer
from oar_lightning.credit.scorers.base import Scorer
from oar_lightning.distributed.ranks import all_gather
from oar_lightning.objective.metric_sums import MetricSums
from oar_lightning.policy.token_budget import PASS_TOKENS, SomeTokens, TokenBudget
from oar_lightning.types import Rollouts

EPSILON = 1e-6
"""Added to the largest return of a batch, by which rewards are divided."""


class ImplicitRewards(Scorer):
    """Base of scorers whose process rewards are beta (log phi - log of a base), phi a copy of the policy that learns outcomes.

    phi makes one optimizer step on each batch of rollouts. Until the first its rewards are 0: what differs from the base is
    rounding, which the division by the batch's largest return would blow up.

    Args:
        beta: weight of the log-ratios.
        lr: learning rate of phi.
        max_norm: gradient norm of phi above which its gradient is scaled down.
        update: whether phi learns from a batch `before` it scores it, or `after` (which spares a pass).
        right_above: completions with a larger weighted reward are right. phi learns nothing else of the rewards.
        token_budget: padded tokens of one pass of phi, or `auto`; bounds memory, changes rounding alone.
    """

    covers = "response"
    signed = whole = True
    reads_all_rows = True  # all ranks learn at the same time, and normalise together
    reads_groups = True
    learns = True
    loss_of_rows: ClassVar[bool]
    """Whether the loss is a sum over completions. Else it costs phi a pass more."""

    def __init__(
        self,
        beta: float,
        lr: float,
        max_norm: float,
        update: Literal["before", "after"],
        right_above: float,
        token_budget: SomeTokens,
    ) -> None:
        self.beta = beta
        self.update = update
        self.right_above = right_above
        self.token_budget = TokenBudget("scorer.token_budget", token_budget, PASS_TOKENS)
        self._settings = lr, max_norm, self.token_budget
        self.own = OwnModel(*self._settings)
        self._ratios: Tensor | None = None
        self._learned = MetricSums()

    def use(self, tools: Tools) -> None:
        """A run begins with a new phi: the scorer may have served another run of this process."""
        self.own = OwnModel(*self._settings)
        self.own.temperature = tools.temperature

    def check_model(self, model: Any) -> None:
        check_dtype(model)

    def check_trainer(self, sharded: bool, precision: str) -> None:
        check_trainer(sharded, precision)

    def begin(self, model: Any) -> None:
        self.own.begin(model)

    @abstractmethod
    def base(self, rollouts: Rollouts) -> Float[Tensor, "B S"]:
        """The log-probabilities that phi's are compared with."""
        ...

    @abstractmethod
    def scales(self, model: Any, rollouts: Rollouts) -> Float[Tensor, " B"]:
        """What the sum of a completion's log-ratios is multiplied by, to be its score."""
        ...

    @abstractmethod
    def loss(self, scores: Float[Tensor, " B"], labels: Float[Tensor, " B"], group_size: int) -> tuple[Tensor, int]:
        """The summed loss of phi, and what it is a sum of how many of. Labels: 1 right, 0 wrong, NaN unknown."""
        ...

    @abstractmethod
    def advantages(self, model: Any, rollouts: Rollouts, rewards: Float[Tensor, "B S"]) -> Float[Tensor, "B S"]:
        """The token advantages, from beta log-ratios and the completions' own rewards. All ranks call it, perhaps without
        rows."""
        ...

    def kept(self, rollouts: Rollouts) -> Bool[Tensor, " B"]:
        """The completions that phi learns from and that get an advantage: whole groups."""
        return torch.ones(len(rollouts), dtype=torch.bool, device=rollouts.rewards.device)

    def labels(self, rollouts: Rollouts) -> Float[Tensor, " B"]:
        rewards = rollouts.rewards.double()
        return rewards.gt(self.right_above).double().masked_fill(rewards.isnan(), torch.nan)

    def learn(self, model: Any, rollouts: Rollouts) -> None:
        """One step of phi on the batch of all ranks; none where they hold nothing to learn."""
        self.own.begin(model)
        part = rollouts.select(self.kept(rollouts).nonzero().flatten())
        base, scales, labels = self.base(part), self.scales(model, part), self.labels(part)
        count = sum(all_gather(self.loss(torch.zeros_like(labels), labels, part.group_size)[1]))
        if not count:
            return
        known = self.own.steps > 0

        def scores(rows: Any, logprobs: Tensor) -> Tensor:
            return scales[rows] * (logprobs.double() - base[rows]).sum(1)

        everything, weights = slice(None), None
        if not self.loss_of_rows:
            with torch.enable_grad():
                at = scores(everything, self.own.logprobs(part)).detach().requires_grad_()
                (weights,) = torch.autograd.grad(self.loss(at, labels, part.group_size)[0], at)

        def of_chunk(rows: Tensor, logprobs: Tensor) -> Tensor:
            found = scores(rows, logprobs)
            total = self.loss(found, labels[rows], 1)[0] if weights is None else (weights[rows] * found).sum()
            return total / count

        logprobs, norm = self.own.step(part, of_chunk)
        if not known:
            logprobs = base  # but for rounding
        if self.update == "after":
            self._ratios = (logprobs.double() - base)[part.response_mask]
        found = scores(everything, logprobs)
        total, number = self.loss(found, labels, part.group_size)
        self._learned.add({"credit/implicit_loss": (float(total), float(number))})
        self._learned.add({"credit/implicit_accuracy": pair_accuracy(found, labels, part.group_size)})
        self._learned.fold(max, {"credit/implicit_grad_norm": norm})

    def __call__(self, model: Any, rollouts: Rollouts) -> Float[Tensor, "B S"]:
        self.own.begin(model)
        rows = self.kept(rollouts).nonzero().flatten()
        part = rollouts.select(rows)
        rewards = self.beta * self._log_ratios(part)
        out = torch.zeros_like(self.base(rollouts))
        out[rows, rollouts.columns(rows)] = self.advantages(model, part, rewards).to(out)
        self.metrics = {"implicit_kept_frac": len(rows) / max(1, len(rollouts))}
        self.totals, self._learned = self._learned, MetricSums()
        return out

    def _log_ratios(self, rollouts: Rollouts) -> Float[Tensor, "B S"]:
        """log phi - log base of the response tokens; those that learning has just found, where phi learns `after`."""
        out = torch.zeros(rollouts.token_ids.shape, dtype=torch.float64, device=rollouts.token_ids.device)
        mask, base = rollouts.response_mask, self.base(rollouts)
        found, self._ratios = self._ratios, None
        if found is not None:
            out[mask] = found
        elif self.own.steps:
            out[mask] = (self.own.logprobs(rollouts).double() - base)[mask]
        return out

    def state_dict(self) -> dict[str, Any]:
        return self.own.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.own.load_state_dict(state)


def pair_accuracy(scores: Float[Tensor, " B"], labels: Float[Tensor, " B"], group_size: int) -> tuple[float, float]:
    """How many pairs of a right and a wrong completion of a group have their scores in this order (equal ones half), and how
    many pairs there are."""
    differences, pairs = right_minus_wrong(scores, labels, group_size)
    signs = differences[pairs].sign()
    return float((signs + 1).sum() / 2), float(pairs.sum())


def right_minus_wrong(
    scores: Float[Tensor, " B"], labels: Float[Tensor, " B"], group_size: int
) -> tuple[Float[Tensor, "g G G"], Bool[Tensor, "g G G"]]:
    """The differences of scores within each group, and which are those of a right and a wrong completion."""
    s, y = scores.view(-1, group_size), labels.view(-1, group_size)
    return s[:, :, None] - s[:, None, :], (y == 1)[:, :, None] & (y == 0)[:, None, :]


def outcome_rloo(rewards: Float[Tensor, " B"], group_size: int) -> Float[Tensor, " B"]:
    """R_i - mean of the other rewards of the group. Rewards that are not known count as the mean of those that are."""
    groups = rewards.double().view(-1, group_size)
    groups = torch.where(groups.isnan(), groups.nanmean(1, keepdim=True), groups).nan_to_num()
    return ((groups * group_size - groups.sum(1, keepdim=True)) / max(1, group_size - 1)).flatten()


def returns(rewards: Shaped[Tensor, "B n"]) -> Shaped[Tensor, "B n"]:
    """sum_{j >= t} r_j."""
    return rewards.flip(1).cumsum(1).flip(1)


def largest(values: Tensor) -> float:
    """The largest size of any rank, of the numbers that are finite."""
    return max(all_gather(float(values.abs().nan_to_num(0.0, 0.0).max()) if values.numel() else 0.0))
