"""Rewards of completions: weighted terms, each a callable on (problems, completions)."""

from __future__ import annotations

import importlib
import itertools
import math
import numbers
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

import torch
from jaxtyping import Float
from torch import Tensor

from oar_lightning.answers.numbers import plain_number
from oar_lightning.answers.verifier import Verdict, Verifier, VerifierConfig
from oar_lightning.common.config_check import ConfigError
from oar_lightning.common.messages import named_line
from oar_lightning.common.ranges import Rule, checked
from oar_lightning.types import MathProblem


class Completion(NamedTuple):
    """The part of a completion that a reward sees.

    text: what the policy wrote after the prompt; special tokens, EOS among them, are not in it.
    answer: its final answer as `answer.*` finds it, without the box or phrase around it; None where there is none.
    truncated: whether the completion was cut off at ``rollout.max_new_tokens``, so that it has no end.
    num_tokens: its tokens, EOS included.
    """

    text: str
    answer: str | None
    truncated: bool
    num_tokens: int


class RewardTerm(Protocol):
    """A reward function ``(problems, completions) -> one number a completion``, None where it does not apply to one.

    ``problems[i]`` is the problem of ``completions[i]``: the completions of one problem follow each other, and all get the
    same `MathProblem`. Its ``extra`` holds the other columns of its row. The numbers come as a list, or as an array or
    tensor of one dimension; a number may be Python's, numpy's or torch's, and a truth value counts as 0 or 1. The weight of
    a term is 1 unless ``reward.weights`` names it. A function is called in training, in evaluation and on recorded
    completions, on each rank with that rank's completions, and before all this on made-up ones (`Rewards.try_out`).
    """

    def __call__(self, problems: Sequence[MathProblem], completions: Sequence[Completion]) -> Sequence[float | None]: ...


class Accuracy:
    """1 for an answer equivalent to the gold answer, else 0; the verdicts of the last call are counted.

    Args:
        verifier: limits of one verdict.
        tolerance_column: the extra column (`MathProblem.extra`) with the largest difference at which a number is right.
            Problems without a value there are judged exactly. None: all are.
    """

    def __init__(self, verifier: VerifierConfig = VerifierConfig(), tolerance_column: str | None = None) -> None:
        self.verifier = Verifier(verifier)
        self.tolerance_column = tolerance_column
        self.last: list[Verdict] = []
        """The verdicts of the last call."""

    @property
    def verdicts(self) -> Counter[str]:
        """Number of each verdict in the last call."""
        return Counter(v.value for v in self.last)

    def __call__(self, problems: Sequence[MathProblem], completions: Sequence[Completion]) -> list[float]:
        self.last = self.verifier([p.answer for p in problems], [c.answer for c in completions])
        if self.tolerance_column is not None:
            self.last = [self._tolerant(*row) for row in zip(problems, completions, self.last, strict=True)]
        return [float(v is Verdict.CORRECT) for v in self.last]

    def tolerance(self, problem: MathProblem) -> float | None:
        """Of a problem, with a `tolerance_column`. None: it is judged exactly.

        Raises:
            ValueError: names the problem whose tolerance is no number >= 0.
        """
        stated = problem.extra.get(str(self.tolerance_column))
        if stated in (None, "") or stated != stated:  # as JSON's NaN
            return None
        exact = plain_number(str(stated))
        tolerance = None if exact is None or exact < 0 else _number(exact)
        if tolerance is None:
            raise ValueError(
                f"problem {problem.id!r} has {self.tolerance_column}={stated!r}, which is no number >= 0; correct the column, "
                "or set reward.terms.accuracy.tolerance_column=null"
            )
        return tolerance

    def _tolerant(self, problem: MathProblem, completion: Completion, verdict: Verdict) -> Verdict:
        tolerance = self.tolerance(problem)
        if tolerance is None or verdict is Verdict.CORRECT or completion.answer is None:
            return verdict
        return Verdict.CORRECT if self.verifier.within(problem.answer, completion.answer, tolerance) else verdict


class Format:
    """1 for a completion that states a final answer and ends by itself, else 0."""

    def __call__(self, problems: Sequence[MathProblem], completions: Sequence[Completion]) -> list[float]:
        return [float(c.answer is not None and not c.truncated) for c in completions]


@checked(
    "reward.terms.overlong",
    Rule(
        lambda buffer, max_tokens: buffer is None or 1 <= buffer <= max_tokens,
        "reward.terms.overlong.buffer must be in 1..max_tokens={max_tokens} or null, got {buffer}; it is the number of tokens "
        "over which the punishment grows",
    ),
)
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
        except Exception as error:  # whatever its module does when it is imported
            raise ValueError(
                f"reward function path={path}: cannot be imported ({named_line(error)}); give module.function, with the "
                "module's folder on PYTHONPATH"
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
        for name, term in self.terms.items():
            if not callable(term):
                key = f"reward.terms.{name}"
                raise ValueError(
                    f"{key} is a {type(term).__name__} and cannot be called; name a class by +{key}._target_=..., or a "
                    f"function by +{key}._target_=oar_lightning.answers.reward.FunctionReward +{key}.path=my_module.function"
                )
        if unknown := sorted(set(self.weights) - set(self.terms)):
            raise ValueError(
                f"reward.weights names {unknown}, which are not in reward.terms: {sorted(self.terms)}; add the term, or leave "
                f"the weight out: '~reward.weights.{unknown[0]}'"
            )
        for name, weight in self.weights.items():
            if isinstance(weight, bool) or not isinstance(weight, int | float) or not math.isfinite(weight):
                raise ValueError(f"reward.weights.{name} must be a finite number, got {weight}; 0 leaves the term out")

    def weight_vector(self) -> Float[Tensor, " K"]:
        """The weights in the order of the terms; 1 where none is given. As rewards they are float64: float32 would not tell
        large rewards apart that differ little."""
        return torch.tensor([float(self.weights.get(name, 1.0)) for name in self.terms], dtype=torch.float64)

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
            try:
                returned = term(problems, completions)
            except Exception as error:
                raise RuntimeError(f"reward.terms.{name} raised {type(error).__name__}: {error}") from error
            values = numbers_of(returned, len(completions), f"reward.terms.{name}")
            columns.append(values)
            metrics[f"rewards/{name}"] = torch.tensor(values).nanmean().item()
            if isinstance(term, Accuracy):
                counts = term.verdicts
                metrics.update({f"verdict/{v.value}": counts[v.value] / len(values) for v in Verdict})
        return torch.tensor(columns, dtype=torch.float64).T.reshape(len(completions), len(columns)), metrics

    def try_out(self, *sources: Iterable[MathProblem]) -> None:
        """Before long work starts, call every term on two made-up completions of each source's first problem, the gold answer
        alone, and read what `accuracy` needs of all problems.

        Args:
            sources: may be empty; beyond their first problems they are read only where tolerances are stated.

        Raises:
            ValueError: names the term that fails or returns something else than a number or None, the problem whose tolerance
                is no number, or the column that no problem has.
        """
        judges = [t for t in self.terms.values() if isinstance(t, Accuracy) and t.tolerance_column is not None]
        columns: set[str] | None = None
        for source in sources:
            problems = iter(source)
            if (first := next(problems, None)) is None:
                continue
            for problem in itertools.chain([first], problems) if judges else ():
                columns = (columns or set()) | problem.extra.keys()
                for judge in judges:
                    judge.tolerance(problem)
            self._try_terms(first)
        for column in (str(judge.tolerance_column) for judge in judges):
            if columns is not None and column not in columns:
                raise ValueError(
                    f"reward.terms.accuracy.tolerance_column={column}: no problem has this column; there are "
                    f"{sorted(columns)}: set it to one of them, or to null"
                )

    def _try_terms(self, problem: MathProblem) -> None:
        made_up = [Completion(problem.answer, problem.answer, truncated=False, num_tokens=1)] * 2
        for name, term in self.terms.items():
            try:
                values = term([problem] * len(made_up), made_up)
            except Exception as error:
                raise ValueError(
                    f"reward.terms.{name} raised {type(error).__name__}: {error} on made-up completions, the gold answer "
                    f"{problem.answer!r} of problem {problem.id!r}; correct it, or leave the term out"
                ) from error
            numbers_of(values, len(made_up), f"reward.terms.{name}")


def numbers_of(values: Any, count: int, name: str) -> list[float]:
    """What a reward function returned as floats, NaN for None.

    Raises:
        ValueError: for anything but `count` finite numbers or None; names the function, what it returned and what is expected.
    """
    expected = f"expected a list of {count} numbers, one a completion, None where the reward does not apply"
    if hasattr(values, "tolist"):  # of numpy or torch, on whatever device
        values = values.tolist()
    if isinstance(values, str | bytes | Mapping | set | frozenset) or not isinstance(values, Iterable):
        raise ValueError(f"{name} returned {_described(values)}; {expected}")
    values = list(values)
    if len(values) != count:
        raise ValueError(f"{name} returned {len(values)} values for {count} completions; {expected}")
    found = [_number(value) for value in values]
    for place, (value, number) in enumerate(zip(values, found, strict=True)):
        if number is None:
            raise ValueError(f"{name} returned {_described(value)} for completion {place} of {count}; {expected}")
    return [number for number in found if number is not None]


def _number(value: Any) -> float | None:
    """The value as a finite float, NaN for None; None for anything else."""
    if value is None:
        return math.nan
    if getattr(value, "ndim", None) == 0:  # a scalar of numpy or torch
        value = value.item()
    try:
        number = float(value) if isinstance(value, numbers.Real) else math.nan
    except OverflowError:
        return None
    return number if math.isfinite(number) else None


def _described(value: Any) -> str:
    return "None" if value is None else f"{value!r:.80} ({type(value).__name__})"


def check_accuracy(rewards: Rewards) -> None:
    """Raises: ConfigError: for rewards without the term that accuracies are counted by."""
    if "accuracy" not in rewards.terms:
        raise ConfigError(f"reward.terms must include accuracy (evaluation counts by it), got {sorted(rewards.terms)}")
