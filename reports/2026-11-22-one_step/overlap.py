"""How many sums of the evaluation are trained on: `python reports/2026-11-22-one_step/overlap.py`."""

from __future__ import annotations

import re
import sys

from oar_lightning.data.chain.task import ChainProblems, ChainTask

TASK = ChainTask(min_steps=1, max_steps=1, asides=9, noise=0.25)
EVALUATED, UPDATES, BATCH, SEEDS = 128, 160, 8, 5


def sums(seed: int, count: int) -> list[tuple[str, str]]:
    """The first number and the result of problems of the training split; names and verbs say nothing of a sum."""
    source = ChainProblems(TASK, "train", seed)
    problems = [source[index] for index in range(count)]
    return [(re.findall(r"\d+", problem.question)[0], problem.answer) for problem in problems]


if __name__ == "__main__":
    evaluated = sums(1000, EVALUATED)
    sys.stdout.write(f"{len(set(evaluated))} distinct sums in {EVALUATED} problems\n")
    for seed in range(SEEDS):
        trained = set(sums(seed, UPDATES * BATCH))
        seen = sum(one in trained for one in evaluated) / EVALUATED
        sys.stdout.write(f"seed {seed}: {100 * seen:.1f} % of the problems have a sum that training has too\n")
