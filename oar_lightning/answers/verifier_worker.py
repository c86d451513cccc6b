"""Child process of `oar_lightning.answers.verifier`: reads `[number, gold, answer]` JSON lines, writes `number verdict` lines.

It loads computer algebra, which takes seconds, and has a fork of itself read and judge. That one may hang, exhaust its memory
or crash on hostile input: alarms end it when its time is over, whether or not the parent lives, `RENEW` ends it earlier, and
whenever it dies another takes its place, which `READY` tells. Both end when their standard input closes. No torch is imported.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import os
import resource
import signal
import sys
from collections.abc import Callable
from typing import Any, TextIO


def close(expected: list[Any], actual: list[Any]) -> bool:
    """False for two numbers that differ much relative to their size. The library rounds to six decimals, which makes any two
    small numbers equal. The numbers stay those of computer algebra: 2^{2010} and its inverse are no floats."""
    first, second = expected[0], actual[0]
    if not (getattr(first, "is_number", False) and getattr(second, "is_number", False)):
        return True
    difference, sizes = abs((first - second).evalf()), [abs(number.evalf()) for number in (first, second)]
    return bool(difference <= max(sizes) / 100_000)


Judge = Callable[[str, str], str]
READY, RENEW = "ready", signal.SIGUSR2  # Slurm sends SIGUSR1 to all processes of a job
PATIENCE = 5
"""Seconds on the clock that a comparison may take, of one of the processor."""


def main(memory_bytes: int, timeout_s: float) -> None:
    resource.setrlimit(resource.RLIMIT_AS, (memory_bytes, memory_bytes))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    verdicts = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # what the library prints must not be read as a verdict
    judge = load()
    signals = {RENEW, signal.SIGCHLD}
    signal.signal(signal.SIGCHLD, lambda *_: None)  # what would be ignored is not waited for on every system
    signal.pthread_sigmask(signal.SIG_BLOCK, signals)
    while True:
        fork = os.fork()
        if not fork:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, signals)
            serve(judge, verdicts, timeout_s)
            os._exit(0)
        verdicts.write(f"{READY}\n")
        ended = status = 0
        while not ended:
            if signal.sigwait(signals) == RENEW:
                os.kill(fork, signal.SIGKILL)  # nobody has waited for it: its number is no other process's
            ended, status = os.waitpid(fork, os.WNOHANG)
        if status == 0:
            return


def load() -> Judge:
    """What says `correct`, `incorrect`, `unparseable` or, where memory is short, `timeout` of a gold answer and an answer."""
    import logging

    from math_verify import LatexExtractionConfig, parse, verify

    logging.disable(logging.CRITICAL)
    latex = LatexExtractionConfig(boxed_match_priority=0, try_extract_without_anchor=False)
    # units are split before; the library's own rule takes letters off the end, so that `\sin 2t` would be `\sin 2`
    latex = dataclasses.replace(latex, normalization_config=dataclasses.replace(latex.normalization_config, units=False))

    @functools.lru_cache(maxsize=256)  # the same gold answers recur
    def parsed(text: str) -> list[object]:
        # no timeout of the library: it takes whole seconds only, and the parent's limit is hard
        # anchored: else a text that cannot be read is judged by any fraction inside it
        return parse(f"\\boxed{{{text}}}", extraction_config=[latex], parsing_timeout=None, extraction_mode="first_match")

    def judge(gold: str, answer: str) -> str:
        try:
            expected, actual = parsed(gold), parsed(answer)
            if not actual or not expected:
                return "unparseable"
            equal = verify(expected, actual, timeout_seconds=None) and close(expected, actual)
            return "correct" if equal else "incorrect"
        except (Exception, RecursionError) as error:
            return "timeout" if isinstance(error, MemoryError) else "unparseable"

    if judge("\\frac{1}{2}", "0.5") != "correct":  # the first use loads grammars, which is slow
        raise RuntimeError("math-verify does not find 1/2 equal to 0.5")
    return judge


def serve(judge: Judge, verdicts: TextIO, timeout_s: float) -> None:
    """Until standard input closes."""
    for line in sys.stdin:
        number, gold, answer = json.loads(line)
        alarms = {signal.ITIMER_PROF: timeout_s, signal.ITIMER_REAL: PATIENCE * timeout_s + 1}
        for alarm, seconds in alarms.items():
            signal.setitimer(alarm, seconds)  # no handler: the process ends
        verdict = judge(gold, answer)
        for alarm in alarms:
            signal.setitimer(alarm, 0)
        verdicts.write(f"{number} {verdict}\n")


if __name__ == "__main__":
    main(int(sys.argv[1]), float(sys.argv[2]))
