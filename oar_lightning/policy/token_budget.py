"""How many tokens go through the model at once, and fewer of them where memory runs out."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Literal, TypeVar

from oar_lightning.distributed.ranks import all_gather
from oar_lightning.policy.batching import chunks_by_tokens
from oar_lightning.policy.out_of_memory import REMEDIES, OutOfMemory, first_line, free_memory, out_of_memory

log = logging.getLogger(__name__)

T = TypeVar("T")

Tokens = int | Literal["auto"] | None
"""A budget as a config gives it."""


class TokenBudget:
    """Padded tokens (rows times the longest) of one pass, `tokens`; None for no bound.

    A number stays as it is. `auto` starts with `start`, and where a pass runs out of memory becomes half of what that pass
    had, for good; the pass is repeated in parts.

    Raises:
        ValueError: for anything else, naming the key.
    """

    def __init__(self, key: str, given: Tokens = None, start: int | None = None) -> None:
        if given not in (None, "auto") and (not isinstance(given, int) or isinstance(given, bool) or given < 1):
            raise ValueError(f"{key} is a number of tokens and must be >= 1, or auto, got {given}")
        self.key = key
        self.auto = given == "auto"
        self.tokens = start if given == "auto" else given

    def set_start(self, tokens: int | None) -> None:
        """Take a value for `auto`: a memory plan's, a checkpoint's, other ranks'. A number that was given stays."""
        if self.auto:
            self.tokens = tokens

    def run_in_chunks(
        self,
        lengths: Sequence[int],
        work: Callable[[list[int]], T],
        chunks: Iterable[list[int]] | None = None,
        spread: int | None = None,
    ) -> Iterator[tuple[list[int], T]]:
        """`work` on the rows of these lengths chunk by chunk, each within the budget; yields a chunk and what came of it.

        `work` is repeated for the rows of a chunk that did not fit, so it must leave nothing behind when it fails. `chunks`: as
        the rows are divided already; a budget that is a number does not divide them again. `spread`: as in `chunks_by_tokens`.

        Raises:
            OutOfMemory: where a row alone does not fit, or the budget is a number.
        """
        divided = chunks is not None
        waiting = deque(chunk for chunk in ([list(range(len(lengths)))] if chunks is None else chunks) if chunk)
        while waiting:
            chunk = waiting.popleft()
            if self.tokens is not None and (self.auto or not divided):
                parts = chunks_by_tokens([lengths[i] for i in chunk], self.tokens, spread)
                chunk, *others = [[chunk[i] for i in part] for part in parts]
                waiting.extendleft(reversed(others))
            failure = None
            try:
                found = work(chunk)
            except Exception as error:
                if not out_of_memory(error):
                    raise
                failure = first_line(error)
                self._check(chunk, lengths, failure, error)
            if failure is None:
                yield chunk, found
                continue
            # only here, where the error is gone and with it the frames that hold the failed pass
            free_memory()
            self._halve(chunk, lengths, failure)
            waiting.appendleft(chunk)

    def _check(self, chunk: list[int], lengths: Sequence[int], failure: str, error: Exception) -> None:
        rows, tokens = len(chunk), len(chunk) * max(lengths[i] for i in chunk)
        if rows > 1 and self.auto:
            return
        given = "auto" if self.auto else "null" if self.tokens is None else self.tokens
        what, remedy = f"a single row of {tokens} tokens", REMEDIES
        if rows > 1:
            what = f"a pass of {rows} rows and {tokens} padded tokens"
            remedy = f"set {self.key}=auto, which makes smaller passes where memory runs out, or {self.key}={tokens // 2}"
        raise OutOfMemory(f"{self.key}={given}: {what} does not fit into memory ({failure}); {remedy}") from error

    def _halve(self, chunk: list[int], lengths: Sequence[int], failure: str) -> None:
        size = len(chunk) * max(lengths[i] for i in chunk)
        before = self.tokens
        self.tokens = min(size if before is None else before, size // 2)
        log.warning(
            "%s=auto: a pass of %d rows and %d padded tokens did not fit into memory (%s) and is repeated in parts; "
            "%s is lowered from %s to %d for the rest of the run",
            self.key,
            len(chunk),
            size,
            failure,
            self.key,
            "no bound" if before is None else before,
            self.tokens,
        )


def as_budget(key: str, given: TokenBudget | Tokens) -> TokenBudget:
    """A budget as it is, so that copies of a config share it; a config's value as a budget."""
    return given if isinstance(given, TokenBudget) else TokenBudget(key, given)


def sync_min(budgets: Sequence[TokenBudget]) -> None:
    """Every rank takes the smallest value that any rank has found. All have to call it."""
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
