"""Verdicts a second, cache off, after warm-up.

    python reports/answers/throughput.py DATA_FOLDER

reads gsm8k_model_outputs.jsonl.gz, math_model_outputs.jsonl and math_train.jsonl.gz there. Each pair of gold and answer is
judged once a round; the kinds take turns, the medians of the rounds are printed.
"""

from __future__ import annotations

import gzip
import itertools
import json
import statistics
import sys
import time
from pathlib import Path
from typing import Any

from oar_lightning.answers.span import gold_answer
from oar_lightning.answers.verifier import Verdict, Verifier, VerifierConfig

ROUNDS = 3
Pairs = list[tuple[str, str]]


def rows(path: Path) -> list[dict[str, Any]]:
    with gzip.open(path, "rt", encoding="utf-8") if path.suffix == ".gz" else open(path, encoding="utf-8") as stream:
        return [json.loads(line) for line in stream]


def pairs_of(folder: Path) -> dict[str, Pairs]:
    outputs = [*rows(folder / "gsm8k_model_outputs.jsonl.gz"), *rows(folder / "math_model_outputs.jsonl")]
    recorded = [(r["answer"], gold_answer(r["completion"])) for r in outputs]
    golds = list(dict.fromkeys(r["answer"] for r in rows(folder / "math_train.jsonl.gz") if r["answer"]))
    return {
        "recorded model outputs": list(dict.fromkeys((g, a) for g, a in recorded if a is not None)),
        "MATH golds, respelled": [(g, g.replace("\\frac", "\\dfrac").replace(" ", "\\ ") + ".") for g in golds],
        "MATH golds against the next one": list(itertools.pairwise(golds)),
    }


def main(folder: str) -> None:
    verifier = Verifier(VerifierConfig(cache=0))
    verifier(["\\{1, 2\\}", "\\{1, 3\\}"], ["\\{2, 1\\}", "\\{3, 1\\}"])  # both workers are up
    rates: dict[str, list[float]] = {}
    shares: dict[str, float] = {}
    for _ in range(ROUNDS):
        for kind, pairs in pairs_of(Path(folder)).items():
            start = time.perf_counter()
            verifier([g for g, _ in pairs], [a for _, a in pairs])
            rates.setdefault(kind, []).append(len(pairs) / (time.perf_counter() - start))
            decided = sum(isinstance(verifier.by_form(*pair), Verdict) for pair in pairs)
            shares[kind] = decided / len(pairs)
    verifier.close()
    sys.stdout.write("| answers | pairs | settled by form | verdicts / s (median) |\n|---|---|---|---|\n")
    for kind, pairs in pairs_of(Path(folder)).items():
        sys.stdout.write(f"| {kind} | {len(pairs)} | {100 * shares[kind]:.1f} % | {statistics.median(rates[kind]):.0f} |\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
