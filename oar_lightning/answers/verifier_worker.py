"""Child process of `oar_lightning.answers.verifier`: reads `[gold, answer]` JSON lines, writes one verdict a line.

It may hang, exhaust its memory or crash on hostile input; the parent kills and replaces it. It imports no torch, and ends
when its standard input closes, or by an alarm when it hangs after its parent died: it never outlives it by long.
"""

from __future__ import annotations

import functools
import json
import os
import resource
import signal
import sys


def close(expected: list[object], actual: list[object]) -> bool:
    """False for two numbers that are far apart relative to their size: the library rounds to six decimals, so that to it
    any two small numbers are equal."""
    numbers = []
    for parsed in (expected, actual):
        value = getattr(parsed[0], "evalf", None)
        if value is None or not getattr(parsed[0], "is_number", False):
            return True
        numbers.append(complex(value()))
    first, second = numbers
    return abs(first - second) <= 1e-5 * max(abs(first), abs(second))


def main(memory_bytes: int, timeout_s: float) -> None:
    resource.setrlimit(resource.RLIMIT_AS, (memory_bytes, memory_bytes))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    verdicts = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # whatever the library prints must not look like a verdict
    import logging

    from math_verify import LatexExtractionConfig, parse, verify

    logging.disable(logging.CRITICAL)
    latex = LatexExtractionConfig(boxed_match_priority=0, try_extract_without_anchor=False)

    @functools.lru_cache(maxsize=256)  # the golds come again and again
    def parsed(text: str) -> list[object]:
        # no time-out of its own: its alarm takes whole seconds only and the parent's limit is hard
        # anchored: else a text that cannot be read is judged by any fraction inside it
        return parse(f"\\boxed{{{text}}}", extraction_config=[latex], parsing_timeout=None, extraction_mode="first_match")

    verify(parsed("\\frac{1}{2}"), parsed("0.5"), timeout_seconds=None)  # the first use loads grammars, which takes a while
    verdicts.write("ready\n")
    for line in sys.stdin:
        signal.setitimer(signal.ITIMER_REAL, timeout_s + 1)  # no handler: the process ends
        gold, answer = json.loads(line)
        try:
            expected, actual = parsed(gold), parsed(answer)
            if not actual or not expected:
                verdict = "unparseable"
            else:
                equal = verify(expected, actual, timeout_seconds=None) and close(expected, actual)
                verdict = "correct" if equal else "incorrect"
        except (Exception, RecursionError) as error:
            verdict = "timeout" if isinstance(error, MemoryError) else "unparseable"
        signal.setitimer(signal.ITIMER_REAL, 0)
        verdicts.write(verdict + "\n")


if __name__ == "__main__":
    main(int(sys.argv[1]), float(sys.argv[2]))
