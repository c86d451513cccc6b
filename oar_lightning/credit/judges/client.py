"""Requests to an OpenAI-compatible endpoint that may do anything: hang, fail, answer slowly, without end, or with nonsense."""

from __future__ import annotations

import asyncio
import math
import os
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

LARGEST_BODY = 1_000_000
"""Bytes of a response."""

RETRIED = {408, 409, 425, 429}
"""Statuses below 500 after which another attempt may succeed."""


class NoAnswer(Exception):
    """A request that was not answered; the message says why, in words that are not the endpoint's."""


@dataclass(frozen=True)
class Endpoint:
    """Where requests go, and how long they are tried.

    Args:
        url: the API's address, such as ``http://127.0.0.1:8000/v1``.
        model: its name for the model.
        key: sent with each request.
        options: further fields of a request.
        timeout: seconds until an attempt is given up, whatever has come by then.
        retries: further attempts.
        retry_delay: seconds before the first of them, doubled each time; longer where the endpoint says so.
        longest_wait: no attempt is made that would have to wait longer.
    """

    url: str
    model: str
    key: str = field(repr=False)
    options: Mapping[str, Any]
    timeout: float
    retries: int
    retry_delay: float
    longest_wait: float

    @asynccontextmanager
    async def connected(self) -> AsyncIterator[Any]:
        """A client, for the event loop that runs."""
        import openai

        # errors and redirects are told by their status, bodies that nobody reads are not received
        http = openai.DefaultAsyncHttpxClient(
            follow_redirects=False,
            event_hooks={"response": [_close_unless_ok]},
            verify=not self.url.startswith("http://"),  # certificates that nobody asks for take long to read
        )
        client = openai.AsyncOpenAI(
            api_key=self.key,
            base_url=self.url,
            max_retries=0,
            timeout=self.timeout,
            http_client=http,
            default_headers={"Accept-Encoding": "identity"},  # a small body could unpack to a huge one
        )
        async with client:
            yield client

    async def ask(self, client: Any, messages: list[dict[str, str]], may_call: Callable[[], bool]) -> bytes | None:
        """The body of the response; None where `may_call`, which is asked before each attempt, forbids one.

        Raises:
            NoAnswer: after the last attempt.
        """
        import openai

        for attempt in range(self.retries + 1):
            if not may_call():
                return None
            wait = self.retry_delay * 2.0 ** min(attempt, 64)  # beyond any `longest_wait`, within a float
            try:
                async with asyncio.timeout(self.timeout):
                    return await self._body(client, messages)
            except TimeoutError:
                reason = f"no answer within scorer.judge.timeout={self.timeout:g} s"
            except openai.APIStatusError as error:
                reason = f"HTTP status {error.status_code}"
                if error.status_code not in RETRIED and error.status_code < 500:
                    break
                wait = max(wait, _seconds(error.response.headers.get("retry-after")))
            except NoAnswer:
                raise
            except Exception as error:  # of the network libraries below; nothing that an endpoint does may end a run
                reason = type(error.__cause__ or error).__name__
            if wait > self.longest_wait:
                reason += f", wait {wait:g} s"
                break
            if attempt < self.retries:
                await asyncio.sleep(wait)
        raise NoAnswer(reason)

    async def _body(self, client: Any, messages: list[dict[str, str]]) -> bytes:
        call = client.chat.completions.with_streaming_response.create(
            model=self.model, messages=messages, extra_body=dict(self.options)
        )
        body = bytearray()
        async with call as response:
            async for part in response.http_response.aiter_raw():
                body += part
                if len(body) > LARGEST_BODY:
                    raise NoAnswer(f"a response of more than {LARGEST_BODY} bytes")
        return bytes(body)


async def _close_unless_ok(response: Any) -> None:
    if response.status_code != 200:
        await response.aclose()


def _seconds(header: str | None) -> float:
    """The seconds of a Retry-After header; 0 for a date and for anything else."""
    try:
        seconds = float(header or 0)
    except ValueError:
        return 0.0
    return seconds if math.isfinite(seconds) and seconds > 0 else 0.0


def require_client() -> None:
    """Raises ImportError, with the remedy, where the client is not installed."""
    try:
        import openai  # noqa: F401
    except ImportError as error:
        raise ImportError(
            "scorer/judge=endpoint needs the optional extra: pip install -e '.[judge]'; scorer/judge=exact needs none"
        ) from error


def key_of(variable: str | None) -> str:
    """The key that an environment variable holds.

    Raises:
        ValueError: where it is not set.
    """
    if variable is None:
        return "none"  # the client insists on one
    key = os.environ.get(variable, "").strip()
    if not key or not (key.isascii() and key.isprintable()):
        raise ValueError(
            f"scorer.judge.key_variable={variable}: this environment variable holds no key; set it, name another, or give null "
            "for an endpoint without keys"
        )
    return key
