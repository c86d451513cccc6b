"""Rewards of completions: weighted terms, each a callable on (problems, completions)."""

from __future__ import annotations

import importlib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

import torch
from jaxtyping import Float
from torch import Tensor

from oar_lightning.answers.verifier import Verdict, Verifier, VerifierConfig
from oar_lightning.common.config_check import ConfigError
from oar_lightning.types import MathProblem


class Completion(NamedTuple):
    """The part of a completion that a reward sees: its text, its final answer (None: none found), whether it was cut off."""

    text: str
    answer: str | None
    truncated: bool
    num_tokens: int


class RewardTerm(Protocol):
    """A reward function: one number a completion, None where it does not apply."""

    def __call__(self, problems: Sequence[MathProblem], completions: Sequence[Completion]) -> Sequence[float | None]: ...


class Accuracy:
    """1 for an answer equivalent to the gold answer, else 0; the verdicts of the last call are counted."""

    def __init__(self, verifier: VerifierConfig = VerifierConfig()) -> None:
        self.verifier = Verifier(verifier)
        self.last: list[Verdict] = []
        """The verdicts of the last call."""

    @property
    def verdicts(self) -> Counter[str]:
        """Number of each verdict in the last call."""
        return Counter(v.value for v in self.last)

    def __call__(self, problems: Sequence[MathProblem], completions: Sequence[Completion]) -> list[float]:
        self.last = self.verifier([p.answer for p in problems], [c.answer for c in completions])
        return [float(v is Verdict.CORRECT) for v in self.last]


class Format:
    """1 for a completion that states a final answer and ends by itself, else 0."""

    def __call__(self, problems: Sequence[MathProblem], completions: Sequence[Completion]) -> list[float]:
        return [float(c.answer is not None and not c.truncated) for c in completions]


@dataclass(frozen=True)
class SoftOverlong:
    """DAPO's soft overlong punishment (arXiv 2503.14476): 0 up to ``max_tokens - buffer``, then falling linearly to -1 at
    ``max_tokens``; a truncated completion gets -1.

    Args:
        max_tokens: the length at which the punishment is full, usually ``rollout.max_new_tokens``.
        buffer: tokens over which it grows; None for a fifth of ``max_tokens``, as in the paper.
    """

    max_tokens: int
    buffer: int | None = None

    def __post_init__(self) -> None:
        if self.buffer is not None and not 0 < self.buffer <= self.max_tokens:
            raise ValueError(
                f"reward.terms.overlong.buffer must be in 1..max_tokens={self.max_tokens} or null, got {self.buffer}; "
                "it is the number of tokens over which the punishment grows"
            )

    def __call__(self, problems: Sequence[MathProblem], completions: Sequence[Completion]) -> list[float]:
        buffer = self.buffer or max(1, self.max_tokens // 5)
        unpunished = self.max_tokens - buffer
        return [-1.0 if c.truncated else -min(1.0, max(0.0, (c.num_tokens - unpunished) / buffer)) for c in completions]


class FunctionReward:
    """The user's own reward function (problems, completions) -> numbers, by its import path ``my_module.my_function``.

    Raises:
        ValueError: where the path cannot be imported or is not callable.
    """

    def __init__(self, path: str) -> None:
        module, _, name = path.rpartition(".")
        try:
            function = getattr(importlib.import_module(module), name)
        except (ImportError, AttributeError, ValueError) as error:
            raise ValueError(
                f"reward function path={path}: cannot be imported ({error}); give module.function, with the module's folder "
                "on PYTHONPATH"
            ) from error
        if not callable(function):
            raise ValueError(f"reward function path={path} is a {type(function).__name__}, not a function")
        self.function: RewardTerm = function

    def __call__(self, problems: Sequence[MathProblem], completions: Sequence[Completion]) -> Sequence[float | None]:
        return self.function(problems, completions)


@dataclass(frozen=True)
class Rewards:
    """Named reward terms and their weights; the term named `accuracy` also defines accuracy in metrics and tables."""

    terms: Mapping[str, RewardTerm]
    weights: Mapping[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not self.terms:
            raise ValueError("reward.terms is empty: name at least one, e.g. accuracy")
        unknown = set(self.weights) - set(self.terms)
        if unknown:
            raise ValueError(f"reward.weights names {sorted(unknown)}, which are not in reward.terms: {sorted(self.terms)}")

    def weight_vector(self) -> Float[Tensor, " K"]:
        """The weights in the order of the terms; 1 where none is given."""
        return torch.tensor([float(self.weights.get(name, 1.0)) for name in self.terms])

    def term_metrics(self, rewards: Float[Tensor, "B K"]) -> dict[str, tuple[float, float]]:
        """(sum, count) of each term over the completions that it applies to."""
        sums, counts = rewards.nansum(0).tolist(), (~rewards.isnan()).sum(0).tolist()
        return {f"rewards/{name}": (sums[i], float(counts[i])) for i, name in enumerate(self.terms)}

    def __call__(
        self, problems: Sequence[MathProblem], completions: Sequence[Completion]
    ) -> tuple[Float[Tensor, "B K"], dict[str, float]]:
        """Unweighted rewards, one column a term (NaN: does not apply), and metrics such as the fraction of each verdict."""
        columns, metrics = [], {}
        for name, term in self.terms.items():
            values = [float("nan") if v is None else float(v) for v in term(problems, completions)]
            if len(values) != len(completions):
                raise ValueError(f"reward.terms.{name} gave {len(values)} values for {len(completions)} completions")
            columns.append(values)
            metrics[f"rewards/{name}"] = torch.tensor(values).nanmean().item()
            if isinstance(term, Accuracy):
                counts = term.verdicts
                metrics.update({f"verdict/{v.value}": counts[v.value] / len(values) for v in Verdict})
        return torch.tensor(columns).T.reshape(len(completions), len(columns)), metrics


def check_accuracy(rewards: Rewards) -> None:
    """Raises: ConfigError: for rewards without the term that accuracies are counted by."""
    if "accuracy" not in rewards.terms:
        raise ConfigError(f"reward.terms must include accuracy (evaluation counts by it), got {sorted(rewards.terms)}")
