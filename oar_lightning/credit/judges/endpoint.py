"""A language model behind an OpenAI-compatible endpoint as the judge."""

from __future__ import annotations

import asyncio
import json
import logging
import operator
import time
from collections import Counter
from collections.abc import Coroutine, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Annotated, Any, TypeVar
from urllib.parse import urlsplit

from annotated_types import Interval, Predicate

from oar_lightning.common.ranges import NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt, checked
from oar_lightning.credit.component import Tools
from oar_lightning.credit.judges.base import Judge, Solution, Verdict
from oar_lightning.credit.judges.budget import Budget
from oar_lightning.credit.judges.client import Endpoint, NoAnswer, key_of, require_client
from oar_lightning.credit.judges.critiques import Voting, messages, read_answer, read_critique, voted
from oar_lightning.objective.metric_sums import MetricSums

log = logging.getLogger(__name__)

T = TypeVar("T")

OURS = ("messages", "model", "stream", "n")
"""Fields of a request that are not among its options."""

NoLimit = Annotated[None, "no limit"]


def is_address(url: object) -> bool:
    """an address, http:// or https://, without a password in it"""
    try:
        parts = urlsplit(str(url))
        return parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0 and parts.password is None
    except ValueError:
        return False


Address = Annotated[str, Predicate(is_address)]


def request_fields(options: Mapping[str, Any] | None) -> dict[str, Any]:
    """A request's further fields.

    Raises:
        ValueError: for what cannot be sent as JSON, and for fields that the judge sets itself.
    """
    if taken := sorted((options or {}).keys() & set(OURS)):
        raise ValueError(f"scorer.judge.options must not hold {', '.join(taken)}, which the judge sets itself; remove it")
    try:
        return json.loads(json.dumps(dict(options or {}), allow_nan=False))
    except (TypeError, ValueError, RecursionError) as error:
        raise ValueError(f"scorer.judge.options must hold plain values, which can be sent as JSON, got {options!r}") from error


@checked("scorer.judge")
class EndpointJudge(Judge):
    """Asks a language model for the numbers of the wrong steps, several times if wanted, and puts the answers to the vote.

    What is not an answer in exactly the form that was asked for is none. A solution without any answer has no judgement: so it
    is if the endpoint fails, is too slow, or the budget is spent. Nothing of this ends a run, but an endpoint that does not
    answer a single one of its first requests does.

    Args:
        url, model: see `Endpoint`, as for `timeout`, `retries`, `retry_delay`, `longest_wait` and `options`.
        key_variable: the environment variable that holds the key; None for an endpoint without keys.
        critiques: answers to a solution.
        vote: which steps are wrong by several answers, see `critiques.voted`.
        concurrency: requests under way at once, on each rank.
        step_timeout: seconds after which a step goes on with what is judged.
        max_calls: requests of the whole run, repeated ones included, over all ranks and all its starts.
        max_tokens: the same of tokens, as the endpoint counts them, or one for four characters where it does not.

    Raises:
        ImportError: where the extra `judge` is not installed.
        ValueError: without a key, or for options that a request cannot have.
    """

    def __init__(
        self,
        url: Address,
        model: str,
        key_variable: str | None = None,
        critiques: Annotated[int, Interval(ge=1, le=4)] = 1,
        vote: Voting = "majority",
        concurrency: PositiveInt = 16,
        timeout: PositiveFloat = 60.0,
        step_timeout: PositiveFloat = 900.0,
        retries: NonNegativeInt = 2,
        retry_delay: NonNegativeFloat = 1.0,
        longest_wait: PositiveFloat = 30.0,
        max_calls: PositiveInt | NoLimit = None,
        max_tokens: PositiveInt | NoLimit = None,
        options: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__()
        require_client()
        fields, key = request_fields(options), key_of(key_variable)
        self.endpoint = Endpoint(url, model, key, fields, timeout, retries, retry_delay, longest_wait)
        self.critiques = critiques
        self.vote = vote
        self.concurrency = concurrency
        self.step_timeout = step_timeout
        self.budget = Budget(max_calls, max_tokens)
        self._answered = False
        self._told: set[str] = set()
        """Kinds of trouble that have been warned of."""
        self._counts: Counter[str] = Counter()
        self._failures: Counter[str] = Counter()

    def use(self, tools: Tools) -> None:
        """A run begins with its whole budget: the judge may have served another run of this process."""
        self.budget = Budget(*self.budget.limits.values())
        self._answered = False
        self._told.clear()

    def forecast(self, completions: int) -> str:
        calls = completions * self.critiques
        limits = ", ".join(f"{limit:,} {name}" for name, limit in self.budget.limits.items() if limit is not None)
        return (
            f"judge: at most {calls:,} requests a step (scorer.judge.critiques={self.critiques}), equal completions once, and "
            f"repeated ones; of a run {f'at most {limits}' if limits else 'without limit (scorer.judge.max_calls, max_tokens)'}"
        )

    def __call__(self, solutions: Sequence[Solution]) -> list[Verdict]:
        """Raises ValueError where not one of the first requests was answered."""
        started = time.perf_counter()
        self._counts, self._failures = Counter(), Counter()
        self.budget.share_out()
        critiques: list[list[frozenset[int]]] = [[] for _ in solutions]
        if solutions:
            _run(self._judge(solutions, critiques))
        names = ("calls", "tokens", "unreadable", "failed", "unpaid")
        self.totals = MetricSums()
        self.totals.fold(operator.add, {f"credit/judge_{name}": float(self._counts[name]) for name in names})
        self.totals.fold(max, {"time/judge_s": time.perf_counter() - started})
        self._tell()
        return [voted(found, len(one.steps), self.vote) for one, found in zip(solutions, critiques, strict=True)]

    async def _judge(self, solutions: Sequence[Solution], critiques: list[list[frozenset[int]]]) -> None:
        """Add to each solution's critiques those that there are in time."""
        free = asyncio.Semaphore(self.concurrency)
        wanted = [number for number in range(len(solutions)) for _ in range(self.critiques)]
        finished = 0

        async def one(client: Any, number: int) -> None:
            nonlocal finished
            async with free:
                critique = await self._critique(client, solutions[number])
            finished += 1
            if critique is not None:
                critiques[number].append(critique)

        async with self.endpoint.connected() as client:
            try:
                async with asyncio.timeout(self.step_timeout):
                    await asyncio.gather(*(one(client, number) for number in wanted))
            except TimeoutError:
                self._counts["failed"] += len(wanted) - finished
                self._failures[f"scorer.judge.step_timeout={self.step_timeout:g} s is over"] += len(wanted) - finished

    async def _critique(self, client: Any, solution: Solution) -> frozenset[int] | None:
        request = messages(solution)
        try:
            body = await self.endpoint.ask(client, request, self._take_call)
        except NoAnswer as reason:
            self._counts["failed"] += 1
            self._failures[str(reason)] += 1
            return None
        if body is None:
            self._counts["unpaid"] += 1
            return None
        self._answered = True
        answer = read_answer(body)
        tokens = None if answer is None else answer.tokens
        if tokens is None:
            tokens = (sum(len(one["content"]) for one in request) + len(body)) // 4
        self._counts["tokens"] += tokens
        self.budget.pay(tokens)
        critique = None if answer is None else read_critique(answer.text, len(solution.steps))
        self._counts["unreadable"] += critique is None
        return critique

    def _take_call(self) -> bool:
        taken = self.budget.take_call()
        self._counts["calls"] += taken
        return taken

    def _tell(self) -> None:
        """Warn once a run of each kind of what went wrong."""
        where = f"scorer.judge.url={self.endpoint.url}"
        if self._failures and not self._answered:
            reason, _ = self._failures.most_common(1)[0]
            raise ValueError(
                f"{where}: not one of the first {self._counts['calls']} requests was answered ({reason}); start the endpoint, "
                f"or correct the address, scorer.judge.model={self.endpoint.model} or the key (scorer.judge.key_variable)"
            )
        for reason, count in self._failures.items():
            self._tell_once(reason, "%s: %d answers are missing (%s); credit/judge_failed counts them", where, count, reason)
        if self._counts["unreadable"]:
            message = "%s: %d answers are not of the form that was asked for; credit/judge_unreadable counts them"
            self._tell_once("unreadable", message, where, self._counts["unreadable"])
        if self._counts["unpaid"]:
            limits = ", ".join(f"scorer.judge.max_{name}={limit}" for name, limit in self.budget.limits.items() if limit)
            message = "the judge's budget is spent (%s): from now on completions have no judgement, only their outcome"
            self._tell_once("unpaid", message, limits)

    def _tell_once(self, kind: str, message: str, *values: Any) -> None:
        if kind not in self._told and len(self._told) < 20:
            self._told.add(kind)
            log.warning(message, *values)

    def state_dict(self) -> dict[str, Any]:
        return self.budget.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.budget.load_state_dict(state)


def _run(work: Coroutine[Any, Any, T]) -> T:
    """The result of a coroutine, also where an event loop runs already, as in a notebook."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(work)
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(asyncio.run, work).result()
