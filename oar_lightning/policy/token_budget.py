"""Bounds the tokens that go through the model at once, and lowers the bound where memory runs out."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Annotated, Literal, TypeVar

from oar_lightning.common.activity import activity
from oar_lightning.common.messages import first_line
from oar_lightning.common.ranges import PositiveInt, refusal
from oar_lightning.distributed.ranks import all_gather
from oar_lightning.policy.batching import chunks_by_tokens
from oar_lightning.policy.out_of_memory import REMEDIES, OutOfMemory, free_memory, out_of_memory

log = logging.getLogger(__name__)

T = TypeVar("T")

SomeTokens = Annotated[PositiveInt, "a number of tokens"] | Literal["auto"]
"""A budget as a config gives it."""

Tokens = SomeTokens | None
"""A budget that may be left out."""

PASS_TOKENS = 4096
"""Padded tokens of a pass, and the start of `auto`, of what no setting and no memory plan bounds."""


class TokenBudget:
    """The bound `tokens` on the padded tokens (rows times the longest) of one pass; None for no bound.

    A number is fixed. `auto` starts at `start`. Where a pass runs out of memory, the bound falls to half of that pass's
    tokens for as long as it is used, and the pass is repeated in smaller chunks.

    Raises:
        ValueError: for any other setting, naming the key.
    """

    def __init__(self, key: str, given: Tokens = None, start: int | None = None) -> None:
        if text := refusal(key, given, Tokens):
            raise ValueError(text)
        self.key = key
        self.auto = given == "auto"
        self.tokens = start if given == "auto" else given

    def set_start(self, tokens: int | None) -> None:
        """Set the value of an `auto` budget, e.g. from a memory plan, a checkpoint or another rank; a number is fixed."""
        if self.auto:
            self.tokens = tokens

    def run_in_chunks(
        self,
        lengths: Sequence[int],
        work: Callable[[list[int]], T],
        chunks: Iterable[list[int]] | None = None,
        spread: int | None = None,
    ) -> Iterator[tuple[list[int], T]]:
        """Call `work` on chunks of the rows of these lengths, each within the budget; yields each chunk and its result.

        `work` is called again for the rows of a chunk that did not fit, so a failed call must leave nothing behind. `chunks`:
        a division of the rows that exists already; only an `auto` budget divides it further. `spread`: see
        `chunks_by_tokens`.

        Raises:
            OutOfMemory: where a single row does not fit, or a chunk does not and the budget is not `auto`.
        """
        waiting = deque([list(range(len(lengths)))] if chunks is None else chunks)
        with activity("", len(lengths)) as advance:
            for chunk, result in self._run(waiting, lengths, work, self.auto or chunks is None, spread):
                advance(len(chunk))
                yield chunk, result

    def _run(
        self,
        waiting: deque[list[int]],
        lengths: Sequence[int],
        work: Callable[[list[int]], T],
        divides: bool,
        spread: int | None,
    ) -> Iterator[tuple[list[int], T]]:
        while waiting:
            chunk = waiting.popleft()
            if not chunk:
                continue
            if self.tokens is not None and divides:
                divided = list(chunks_by_tokens([lengths[i] for i in chunk], self.tokens, spread))
                waiting.extendleft([chunk[i] for i in part] for part in reversed(divided[1:]))
                chunk = [chunk[i] for i in divided[0]]
            failure = None
            try:
                result = work(chunk)
            except Exception as error:
                if not out_of_memory(error):
                    raise
                failure = first_line(error)
                self._check(chunk, lengths, failure, error)
            if failure is None:
                yield chunk, result
                continue
            # not in the except block, where the error's frames still hold the tensors of the failed pass
            free_memory()
            self._halve(chunk, lengths, failure)
            waiting.appendleft(chunk)

    def _check(self, chunk: list[int], lengths: Sequence[int], failure: str, error: Exception) -> None:
        """Raise OutOfMemory unless the chunk can be divided."""
        rows, tokens = len(chunk), len(chunk) * max(lengths[i] for i in chunk)
        if rows > 1 and self.auto:
            return
        setting = "null" if self.tokens is None else self.tokens
        if self.auto:
            setting = "auto"
        size, remedy = f"a single row of {tokens} tokens", REMEDIES
        if rows > 1:
            size = f"a pass of {rows} rows and {tokens} padded tokens"
            remedy = f"set {self.key}=auto, which makes smaller passes where memory runs out, or {self.key}={tokens // 2}"
        raise OutOfMemory(f"{self.key}={setting}: {size} does not fit into memory ({failure}); {remedy}") from error

    def _halve(self, chunk: list[int], lengths: Sequence[int], failure: str) -> None:
        size = len(chunk) * max(lengths[i] for i in chunk)
        before = self.tokens
        self.tokens = min(size if before is None else before, size // 2)
        log.warning(
            "%s=auto: a pass of %d rows and %d padded tokens did not fit into memory (%s) and is repeated in parts; "
            "%s is lowered from %s to %d from now on",
            self.key,
            len(chunk),
            size,
            failure,
            self.key,
            "no bound" if before is None else before,
            self.tokens,
        )


def unset_budget(what: str) -> TokenBudget:
    """Of passes that no setting bounds: they become smaller where memory runs out. `what` they are for, in messages."""
    return TokenBudget(f"token budget of {what}", "auto", PASS_TOKENS)


def as_budget(key: str, given: TokenBudget | Tokens) -> TokenBudget:
    """A `TokenBudget` for a config's value. A budget is returned itself, so that copies of a config share it."""
    return given if isinstance(given, TokenBudget) else TokenBudget(key, given)


def sync_min(budgets: Sequence[TokenBudget]) -> None:
    """Set every `auto` budget to the smallest value of any rank. All ranks must call this."""
    if not any(budget.auto for budget in budgets):
        return
    for budget, values in zip(budgets, zip(*all_gather([budget.tokens for budget in budgets]), strict=True), strict=True):
        budget.set_start(min((tokens for tokens in values if tokens is not None), default=None))


def budgets_state(budgets: Sequence[TokenBudget]) -> dict[str, int | None]:
    """The values that `auto` has now, by key, for a checkpoint."""
    return {budget.key: budget.tokens for budget in budgets if budget.auto}


def load_budgets(budgets: Sequence[TokenBudget], state: Mapping[str, int | None]) -> None:
    """Go on with a checkpoint's values; budgets that it does not know stay as they are."""
    for budget in budgets:
        budget.set_start(state.get(budget.key, budget.tokens))
