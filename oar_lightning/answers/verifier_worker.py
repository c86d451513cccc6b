"""Child process of `oar_lightning.answers.verifier`: reads `[gold, answer]` JSON lines, writes one verdict a line.

It may hang, exhaust its memory or crash on hostile input; the parent then kills and replaces it. It imports no torch. It ends
when its standard input closes; if it hangs after its parent died, an alarm ends it.
"""

from __future__ import annotations

import functools
import json
import os
import resource
import signal
import sys
from typing import Any


def close(expected: list[Any], actual: list[Any]) -> bool:
    """False for two numbers that differ much relative to their size. The library rounds to six decimals, which makes any two
    small numbers equal. The numbers stay those of computer algebra: 2^{2010} and its inverse are no floats."""
    first, second = expected[0], actual[0]
    if not (getattr(first, "is_number", False) and getattr(second, "is_number", False)):
        return True
    difference, sizes = abs((first - second).evalf()), [abs(number.evalf()) for number in (first, second)]
    return bool(difference <= max(sizes) / 100_000)


def main(memory_bytes: int, timeout_s: float) -> None:
    resource.setrlimit(resource.RLIMIT_AS, (memory_bytes, memory_bytes))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    verdicts = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # what the library prints must not be read as a verdict
    import logging

    from math_verify import LatexExtractionConfig, parse, verify

    logging.disable(logging.CRITICAL)
    latex = LatexExtractionConfig(boxed_match_priority=0, try_extract_without_anchor=False)

    @functools.lru_cache(maxsize=256)  # the same gold answers recur
    def parsed(text: str) -> list[object]:
        # no timeout of the library: it takes whole seconds only, and the parent's limit is hard
        # anchored: else a text that cannot be read is judged by any fraction inside it
        return parse(f"\\boxed{{{text}}}", extraction_config=[latex], parsing_timeout=None, extraction_mode="first_match")

    verify(parsed("\\frac{1}{2}"), parsed("0.5"), timeout_seconds=None)  # the first use loads grammars, which is slow
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
