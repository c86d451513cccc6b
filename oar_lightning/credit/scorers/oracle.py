"""The oracle scorer: perfect credit from a task's own knowledge, an upper bound on what credit assignment can gain."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from jaxtyping import Float
from torch import Tensor

from oar_lightning.common.config_check import ConfigError
from oar_lightning.credit.located import Locate, located
from oar_lightning.credit.scorers.base import Scorer
from oar_lightning.types import MathProblem, Rollouts


class Oracle(Scorer):
    """I_t = 1 on reasoning tokens that overlap a causal span of the completion's own text, 0 elsewhere. With `wrong` scores
    have a sign, for gate=signed: I_t = -1 where a completion went wrong.

    Args:
        locate: the task's knowledge, (problem, completion) -> `CausalSpans`, e.g. `data.chain.credit.ChainCredit`.
        wrong: likewise, where a completion went wrong. With `locate` = the right decisions before that, scores are the signs of
            the decisions' advantages, were all that comes after done right.

    A completion without a causal span in its reasoning scores 0 everywhere, so that a bi-level gate leaves its weights at 1;
    `unread_frac` is the fraction of such completions, `inexact_frac` of those with inexact spans. Scores are 0 or 1: a
    quantile gate whose threshold falls on the zeros does not suppress them (see conf/experiment/oracle.yaml).
    """

    def __init__(self, locate: Locate, wrong: Locate | None = None) -> None:
        self.locate, self.wrong = locate, wrong
        self.signed = wrong is not None

    knows_tasks = True

    def check_problem(self, problem: MathProblem) -> None:
        """Raises: ValueError: for a problem of another task than it knows."""
        for locate in filter(None, (self.locate, self.wrong)):
            locate(problem, "")

    def __call__(self, model: Any, rollouts: Rollouts) -> Float[Tensor, "B S"]:
        """Raises ValueError for rollouts without texts."""
        tokens, _, inexact = located(rollouts, self.locate, "scorer=oracle")
        importance = (tokens & rollouts.reasoning_mask).float()
        if self.wrong is not None:
            tokens, _, inexact = located(rollouts, self.wrong, "scorer=oracle_signed")
            importance = importance.masked_fill(tokens & rollouts.reasoning_mask, -1.0)
        self.metrics = {
            "unread_frac": 1 - float(importance.any(1).float().mean()),
            "inexact_frac": inexact / len(rollouts),
        }
        return importance


def check_known(scorer: Scorer, problems: Iterable[MathProblem], where: str) -> None:
    """Hold problems against what the scorer knows, before long work; most scorers read any.

    Raises:
        ConfigError: names the source and the first problem of another task.
    """
    if not scorer.knows_tasks:
        return
    for problem in problems:
        try:
            scorer.check_problem(problem)
        except ValueError as error:
            raise ConfigError(f"{where}: problem {problem.id}: {error}") from error
