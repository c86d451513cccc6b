"""How often the turning point of greedy decoding is the first error, and what it costs, by how it is searched.

    python reports/turning_point/measure.py asides                        # the policy that ships: some minutes
    python reports/turning_point/measure.py asides_trained --policy DIR   # another one, of the same task
    python reports/turning_point/measure.py                               # the page of what is measured

Writes results.json and the tables of README.md.
"""

from __future__ import annotations

import dataclasses
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent / "headroom"))

import numpy as np  # noqa: E402
import torch  # noqa: E402
from blocks import set_up, study_page  # noqa: E402  (that folder is no package)

from oar_lightning.common.markdown import markdown  # noqa: E402
from oar_lightning.common.randomness import derive_seed  # noqa: E402
from oar_lightning.credit.scorers import TurningPoint  # noqa: E402
from oar_lightning.data.stream import ProblemStream  # noqa: E402
from oar_lightning.objective.advantage import group_advantages  # noqa: E402
from oar_lightning.rollout.continuations import RolloutTools  # noqa: E402

TITLES = {
    "asides": "`asides`, the policy that ships",
    "asides_trained": "`asides`, after 160 updates with `turning_point` (3e-4, seed 0)",
    "one_step": "`one_step`, the policy that ships",
    "graph": "`graph`, the policy that ships",
}
BATCHES = {"asides": 8, "one_step": 8, "graph": 32}
"""Task -> batches, each of a training step's problems and completions."""
HALVES = {"none": 0, "1": 1, "2": 2, "3": 3, "to the end": 16}
"""Rounds of a search by halves that has learnt nothing."""
AS_IN_TRAINING = "as in training"
"""The search of `scorer=turning_point`, which has learnt from the batches before."""
DRAWS = 2000


class Found(NamedTuple):
    """Of one problem: wrong completions that have a first error, those of them with a turning point, and those whose turning
    point is on that error; right completions, and those with a turning point."""

    wrong: int
    turned: int
    hit: int
    right: int
    right_turned: int


def measured(name: str, policy: Path | None) -> dict[str, Any]:
    task = name.removesuffix("_trained")
    setup = set_up([f"+variant={task}", *([f"policy.name={policy.resolve()}"] if policy else [])], ["oracle"])
    method, stage = setup.settings.method, setup.stage
    assert setup.settings.train is not None
    size = method.update.group_size
    scorers = {form: TurningPoint(rounds, points=1, siblings=False) for form, rounds in HALVES.items()}
    scorers[AS_IN_TRAINING] = TurningPoint(siblings=False)
    for scorer in scorers.values():
        scorer.use(RolloutTools(stage, method.sampling))
    found: dict[str, list[Found]] = {form: [] for form in scorers}
    seconds = dict.fromkeys(scorers, 0.0)
    passes: dict[str, list[float]] = {form: [] for form in scorers}
    sampling = 0.0
    stream = ProblemStream(setup.settings.train, 0)
    for batch in range(BATCHES[task]):
        problems = stream.take(method.update.problems)
        started = time.process_time()
        seeds = [derive_seed("turning_point", batch, i) for i in range(len(problems))]
        rollouts = stage(setup.model, problems, size, method.sampling, seeds, batch)
        sampling += time.process_time() - started
        weights = stage.rewards.weight_vector()
        advantages = group_advantages(rollouts.reward_terms, weights, size, method.advantage)
        rollouts = dataclasses.replace(rollouts, advantages=advantages)
        errors = setup.arms["oracle"].scorer(setup.model, rollouts) > 0
        for form, scorer in scorers.items():
            started = time.process_time()
            if form == AS_IN_TRAINING:
                scorer.learn(setup.model, rollouts)
            scores = scorer(setup.model, rollouts) > 0
            seconds[form] += time.process_time() - started
            passes[form].append(scorer.metrics["forward_equivalents"])
            found[form] += per_problem(errors, scores, rollouts.rewards, advantages, size)
        sys.stderr.write(f"{task}: batch {batch + 1}/{BATCHES[task]}\n")
    return {
        form: {
            "found": [list(f) for f in found[form]],
            "passes": float(np.mean(passes[form])),
            "of_sampling": seconds[form] / sampling,
        }
        for form in scorers
    }


def per_problem(
    errors: torch.Tensor, scores: torch.Tensor, rewards: torch.Tensor, advantages: torch.Tensor, size: int
) -> list[Found]:
    """Of problems with right and wrong completions."""
    result = []
    for rows in torch.arange(len(rewards)).split(size):
        if not advantages[rows].any():
            continue
        wrong = (rewards[rows] == 0) & errors[rows].any(1)
        right = rewards[rows] > 0
        turned, hit = scores[rows].any(1), (scores[rows] & errors[rows]).any(1)
        result.append(Found(*(int(x.sum()) for x in (wrong, wrong & turned, wrong & hit, right, right & turned))))
    return result


def share(found: np.ndarray, over: str, of: str) -> str:
    """A ratio of sums in %, with its 95 % interval by bootstrap over problems; with none where all problems agree."""
    top, bottom = (found[:, Found._fields.index(name)] for name in (over, of))
    if not bottom.sum():
        return "-"
    picked = np.random.default_rng(0).integers(0, len(found), (DRAWS, len(found)))
    with np.errstate(invalid="ignore"):
        drawn = top[picked].sum(1) / bottom[picked].sum(1)
    low, high = np.nanpercentile(drawn, [2.5, 97.5])
    bounds = f" [{100 * low:.0f}, {100 * high:.0f}]" if high > low else ""
    return f"{100 * top.sum() / bottom.sum():.0f}{bounds}"


def table(result: Mapping[str, Any]) -> str:
    rows = [
        [
            *(
                "rounds of halving",
                "wrong completions",
                "of these with a turning point, %",
                "that is the first error, % of those",
            ),
            *("right completions", "of these with a turning point, %", "forward passes", "processor time, of sampling"),
        ]
    ]
    for form, values in result.items():
        found = np.asarray(values["found"])
        wrong, _, _, right, _ = found.sum(0)
        rows.append(
            [
                form,
                *(str(wrong), share(found, "turned", "wrong"), share(found, "hit", "turned")),
                *(str(right), share(found, "right_turned", "right")),
                *(f"{values['passes']:.2f}", f"{values['of_sampling']:.2f}"),
            ]
        )
    return markdown(rows)


if __name__ == "__main__":
    study_page(HERE, __doc__ or "", TITLES, measured, table)
