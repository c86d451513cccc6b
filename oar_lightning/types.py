"""Frozen data that travels between stages; the legend of shapes and of the words for parts of a training step.

Shape legend
------------
B  completions in a batch; the ``group_size`` completions of one problem are consecutive rows
S  tokens of left-padded prompt + right-padded completion; the only token axis there is
N  independent sequences (counterfactuals, draws)
A  answer tokens, padded to the longest answer of a batch
K  reward terms
R  reasoning tokens of one completion
H  hidden size
V  vocabulary size

Every per-token tensor is ``[B S]`` and aligned to ``token_ids``: entry ``s`` is about token ``s``, so
``logprobs[:, 0] = 0``. Regions travel as masks; nothing slices by prompt length.

Words for the parts of an optimizer step
----------------------------------------
slot         one item of the training loader, hence one call of ``training_step``
micro-batch  the rows of one slot; its share is its part of the optimizer step's loss
pass         one forward (in the update also backward) of the model; a token budget bounds its padded tokens. A micro-batch
             is one pass; with ``update.token_budget=auto`` it may take several
chunk        the rows that `TokenBudget.run_in_chunks` gives to one pass
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from jaxtyping import Bool, Float, Int
from torch import Tensor


class Extra(Mapping[str, Any]):
    """What a row holds beside its problem: a mapping that cannot be changed, nor can the lists (as tuples) and mappings in it.
    All completions of a problem, and all epochs, read the same one."""

    __slots__ = ("_values",)

    def __init__(self, values: Mapping[str, Any]) -> None:
        self._values = {str(name): frozen(value) for name, value in values.items()}

    def __getitem__(self, name: str) -> Any:
        try:
            return self._values[name]
        except KeyError:
            raise KeyError(f"no extra column {name!r}; there are {list(self)} (see extra_columns of the data)") from None

    def __contains__(self, name: object) -> bool:
        return name in self._values

    def get(self, name: str, default: Any = None) -> Any:
        return self._values.get(name, default)

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __hash__(self) -> int:
        return hash(frozenset(self._values))  # of the names: a value may be anything

    def __repr__(self) -> str:
        return f"Extra({self._values!r})"

    def thawed(self) -> dict[str, Any]:
        """A copy of plain dictionaries and lists, as JSON and checkpoints hold them."""
        return {name: thawed(value) for name, value in self._values.items()}


def frozen(value: Any) -> Any:
    """Mappings as `Extra`, lists as tuples, all the way down; other values as they are."""
    if isinstance(value, Extra):
        return value
    if isinstance(value, Mapping):
        return Extra(value)
    return tuple(map(frozen, value)) if isinstance(value, list | tuple) else value


def thawed(value: Any) -> Any:
    """The opposite of `frozen`."""
    if isinstance(value, Extra):
        return value.thawed()
    return [thawed(part) for part in value] if isinstance(value, tuple) else value


@dataclass(frozen=True)
class MathProblem:
    """One problem with its gold answer and, where known, a worked solution.

    ``extra`` holds the row's other columns, for rewards, scorers and whatever else gets the problem (`Columns.extra` says
    which).
    """

    question: str
    answer: str
    solution: str = ""
    source: str = ""
    level: str = ""
    id: str = ""
    extra: Mapping[str, Any] = Extra({})

    def __post_init__(self) -> None:
        """Raises: ValueError: for a question or a gold answer that is no text."""
        for name, value in (("question", self.question), ("answer", self.answer)):
            if not isinstance(value, str):
                raise ValueError(f"MathProblem.{name} must be a text, got {value!r}; write str(...)")
        object.__setattr__(self, "extra", frozen(self.extra))


class CausalSpans(NamedTuple):
    """Character ranges ``(start, end)`` of a completion that decide its outcome. `exact` is False for coarser ranges than
    were asked for, to which the locator fell back."""

    spans: tuple[tuple[int, int], ...]
    exact: bool = True


AFTER_WARMUP = 10**9
"""A rollout step after every warm-up, for completions that belong to no step of a training run."""


@dataclass(frozen=True)
class Rollouts:
    """A batch of rollouts: sampled completions with everything that later stages read.

    ``response_mask`` marks generated tokens (EOS included), ``reasoning_mask`` those that are scored and gated,
    ``answer_mask`` the tokens overlapping the final answer. ``reward_terms`` are the unweighted rewards (NaN: does not
    apply), ``rewards`` their weighted sum. ``old_logprobs`` and ``ref_logprobs`` are None where no loss term reads them.
    ``prediction_states[:, s]`` is the policy's final hidden state at column ``s - 1``, from which completion token ``s`` was
    predicted. It is None where no earlier pass kept the states: a reader then runs the policy itself.
    ``sampler_logprobs`` are log-probabilities under the distribution that an engine with its own numerics sampled from; None
    where the policy's own code sampled.
    ``advantages`` are the group advantages; None until they are known.
    ``temperature`` is that of the distribution which the tokens were drawn from.
    ``difficulty`` weighs the problem in an adapted entropy term, 1 on average; None where there is no such weight.
    ``token_spans[i]`` are the character ranges of the response's tokens in ``completions[i]``; empty where there are no texts.
    """

    token_ids: Int[Tensor, "B S"]
    attention_mask: Bool[Tensor, "B S"]
    response_mask: Bool[Tensor, "B S"]
    reasoning_mask: Bool[Tensor, "B S"]
    answer_mask: Bool[Tensor, "B S"]
    reward_terms: Float[Tensor, "B K"]
    rewards: Float[Tensor, " B"]
    group_size: int
    pad_token_id: int = 0
    step: int = 0
    temperature: float = 1.0
    truncated: Bool[Tensor, " B"] | None = None
    advantages: Float[Tensor, " B"] | None = None
    difficulty: Float[Tensor, " B"] | None = None
    old_logprobs: Float[Tensor, "B S"] | None = None
    ref_logprobs: Float[Tensor, "B S"] | None = None
    prediction_states: Float[Tensor, "B S H"] | None = None
    sampler_logprobs: Float[Tensor, "B S"] | None = None
    problems: tuple[MathProblem, ...] = ()
    completions: tuple[str, ...] = ()
    token_spans: tuple[tuple[tuple[int, int], ...], ...] = ()
    answers: tuple[str | None, ...] = ()
    stats: dict[str, float] = field(default_factory=dict)

    def __len__(self) -> int:
        return self.token_ids.shape[0]

    def columns(self, rows: Int[Tensor, " n"]) -> slice:
        """The columns from the first to the last that any of the given rows uses."""
        used = self.attention_mask[rows].any(0).nonzero().flatten()
        return slice(int(used[0]), int(used[-1]) + 1) if len(used) else slice(0, 0)

    def select(self, rows: Int[Tensor, " n"]) -> Rollouts:
        """The given rows, cut to the columns they use. Row-aligned tuples follow; ``stats`` is kept."""
        columns = self.columns(rows)
        changes: dict[str, Any] = {}
        for spec in dataclasses.fields(self):
            value = getattr(self, spec.name)
            if isinstance(value, Tensor):
                per_token = value.ndim > 1 and spec.name != "reward_terms"
                changes[spec.name] = value[rows][:, columns] if per_token else value[rows]
            elif isinstance(value, tuple) and len(value) == len(self):
                changes[spec.name] = tuple(value[i] for i in rows.tolist())
        return dataclasses.replace(self, **changes)


class Prefix(NamedTuple):
    """The tokens of a row of `Rollouts` before `column`: its prompt and the beginning of its completion."""

    row: int
    column: int


class Continued(NamedTuple):
    """Rewards of sampled continuations, `rewards[i, k]` of prefix i's k-th; how many were sampled, and the tokens that went
    through the model for them, those of prefixes once."""

    rewards: Float[Tensor, "n K"]
    sampled: int
    tokens: int


@dataclass(frozen=True)
class Credit:
    """Token advantages with what they were made of, and what a gate asks of the loss.

    ``importance`` are the scorer's scores; ``weights`` the ratios of token and group advantages. The rest is None for most
    gates: ``loss_mask`` marks the tokens that count in the loss, ``clip_low`` and ``clip_high`` are bounds of the ratio (NaN:
    the loss's own), ``kl_factor`` multiplies the KL term, ``entropy_factor`` an adapted entropy term.
    """

    advantages: Float[Tensor, "B S"]
    importance: Float[Tensor, "B S"]
    weights: Float[Tensor, "B S"]
    loss_mask: Bool[Tensor, "B S"] | None = None
    clip_low: Float[Tensor, "B S"] | None = None
    clip_high: Float[Tensor, "B S"] | None = None
    kl_factor: Float[Tensor, "B S"] | None = None
    entropy_factor: Float[Tensor, "B S"] | None = None

    def select(self, rows: Int[Tensor, " n"], columns: slice = slice(None)) -> Credit:
        """The given rows and columns."""
        values = {spec.name: getattr(self, spec.name) for spec in dataclasses.fields(self)}
        changes: dict[str, Any] = {n: None if v is None else v[rows][:, columns] for n, v in values.items()}
        return dataclasses.replace(self, **changes)


@dataclass(frozen=True)
class LossOutput:
    """A scalar loss and its metrics, each as (sum, count) so that micro-batches and ranks can be added up."""

    loss: Float[Tensor, ""]
    metrics: dict[str, tuple[float, float]]
