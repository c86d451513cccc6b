"""Evaluates a policy on problems: sampled and greedy completions, judged and grouped by answer, batch by batch."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from oar_lightning.answers.reward import Accuracy, RewardTerm
from oar_lightning.answers.verifier import Verdict
from oar_lightning.common.randomness import derive_seed
from oar_lightning.common.ranges import NonNegativeInt, PositiveInt, checked
from oar_lightning.evaluation.result import ProblemResult
from oar_lightning.rollout import RolloutStage, SamplingConfig
from oar_lightning.types import MathProblem, Rollouts

log = logging.getLogger(__name__)


@checked("evaluation")
@dataclass(frozen=True)
class EvaluationConfig:
    """The problems and samples of an evaluation, and its interval.

    Args:
        every_n_steps: optimizer steps between evaluations; 0 evaluates only before and after training.
        problems: number of problems, the first ones of each evaluation set; None for all of a finite set.
        samples: completions per problem at the sampling temperature.
        greedy: also decode one completion a problem greedily.
        seed: of the sampling; the same for all runs, so that evaluations are paired.
        heatmap: write the credit heat-map of one group.
        batch_problems: problems whose completions are generated at once; bounds memory, does not change the numbers.
    """

    every_n_steps: NonNegativeInt = 0
    problems: PositiveInt | None = 256
    samples: PositiveInt = 4
    greedy: bool = True
    seed: int = 0
    heatmap: bool = True
    batch_problems: PositiveInt = 256


class EvaluatedBatch(NamedTuple):
    """Results of consecutive problems, and their sampled completions: `samples` rows a problem."""

    results: list[ProblemResult]
    rollouts: Rollouts


def evaluate(
    model: Any,
    stage: RolloutStage,
    problems: Sequence[MathProblem],
    sampling: SamplingConfig,
    config: EvaluationConfig,
    step: int = 0,
    start: int = 0,
    places: Sequence[int] | None = None,
) -> Iterator[EvaluatedBatch]:
    """Evaluate `problems[start:]` in order, a batch at a time, without touching the training's random state.

    A completion is correct if its `accuracy` reward is above one half; one to which `accuracy` does not apply counts as
    incorrect and is logged. A problem's completions are drawn from (config.seed, its place) alone: the rest of the batch
    changes only rounding. `places`: the places of `problems` in their evaluation set, where they are only a part of it; None:
    0, 1, ...
    """
    greedily = dataclasses.replace(sampling, temperature=0.0, keep_states=False)
    size = config.batch_problems
    while start < len(problems):
        end = min(len(problems), (start // size + 1) * size)  # a resumed evaluation comes back to the same batches
        batch = problems[start:end]
        batch_places = range(start, end) if places is None else places[start:end]
        seeds = [derive_seed(config.seed, "evaluation", place) for place in batch_places]
        sampled = stage(model, batch, config.samples, sampling, seeds, step)
        greedy = stage(model, batch, 1, greedily, seeds, step) if config.greedy else None
        yield EvaluatedBatch(_results(stage, batch, config.samples, sampled, greedy), sampled)
        start = end


def _results(
    stage: RolloutStage, problems: Sequence[MathProblem], samples: int, sampled: Rollouts, greedy: Rollouts | None
) -> list[ProblemResult]:
    groups = [slice(i * samples, (i + 1) * samples) for i in range(len(problems))]
    correct, rewards = _correct(stage, sampled), _rewards(sampled)
    truncated = [False] * len(sampled) if sampled.truncated is None else sampled.truncated.tolist()
    same = answers_match(stage.rewards.terms["accuracy"])
    classes = answer_classes([sampled.answers[g] for g in groups], [correct[g] for g in groups], same)
    greedy_fields: list[dict[str, Any]] = [{} for _ in problems]
    if greedy is not None:
        columns = zip(greedy.completions, greedy.answers, _correct(stage, greedy), _rewards(greedy), strict=True)
        greedy_fields = [
            {"greedy_completion": c, "greedy_answer": a, "greedy_correct": ok, "greedy_reward": r} for c, a, ok, r in columns
        ]
    return [
        ProblemResult(
            id=problem.id,
            question=problem.question,
            gold=problem.answer,
            level=problem.level,
            source=problem.source,
            completions=sampled.completions[group],
            answers=sampled.answers[group],
            correct=tuple(correct[group]),
            rewards=tuple(rewards[group]),
            truncated=tuple(truncated[group]),
            classes=tuple(classes[i]),
            **greedy_fields[i],
        )
        for i, (problem, group) in enumerate(zip(problems, groups, strict=True))
    ]


def _correct(stage: RolloutStage, rollouts: Rollouts) -> list[int]:
    accuracy = rollouts.reward_terms[:, list(stage.rewards.terms).index("accuracy")]
    if unjudged := int(accuracy.isnan().sum()):
        log.warning("accuracy does not apply to %d of %d completions; counted as incorrect", unjudged, len(rollouts))
    if late := round(rollouts.stats.get("verdict/timeout", 0.0) * len(rollouts)):
        log.warning(
            "%d of %d answers were not judged in time and are counted as incorrect; on a busy machine raise "
            "reward.terms.accuracy.verifier.timeout_s",
            late,
            len(rollouts),
        )
    return accuracy.gt(0.5).long().tolist()


def _rewards(rollouts: Rollouts) -> list[float | None]:
    return [None if value != value else round(value, 6) for value in rollouts.rewards.tolist()]  # NaN is no JSON


Match = Callable[[Sequence[str], Sequence[str]], list[bool | None]]
"""Whether the answers of each pair are equal; None where that took too long."""


def answers_match(accuracy: RewardTerm) -> Match:
    """Equality of answers by the verifier of an `Accuracy`; for any other term, equality of their texts."""
    if not isinstance(accuracy, Accuracy):
        return lambda first, second: [a == b for a, b in zip(first, second, strict=True)]
    verifier = accuracy.verifier
    return lambda first, second: [None if v is Verdict.TIMEOUT else v is Verdict.CORRECT for v in verifier(first, second)]


def answer_classes(
    answers: Sequence[Sequence[str | None]], correct: Sequence[Sequence[int]], same: Match
) -> list[list[int | None]]:
    """The equivalence classes of each problem's answers: 0 for all correct ones, then 1, 2, ... in order of appearance; None
    for no answer.

    Wrong answers are compared in rounds over all problems at once. In each round the first answer without a class represents
    a new one, and the answers that equal it join it. An answer that takes too long to compare with 1, too, is a class of its
    own: else each pair of such answers would take that long.
    """
    class_of: list[dict[str, int]] = [{} for _ in answers]  # of each wrong answer
    unclassed: list[list[str]] = []
    for texts, row in zip(answers, correct, strict=True):
        unclassed.append(list(dict.fromkeys(a for a, ok in zip(texts, row, strict=True) if a is not None and not ok)))
    while any(unclassed):
        pairs = [(problem, rest[0], other) for problem, rest in enumerate(unclassed) for other in rest[1:]]
        verdicts = same([first for _, first, _ in pairs], [other for _, _, other in pairs]) if pairs else []
        for known, rest in zip(class_of, unclassed, strict=True):
            if rest:
                known[rest[0]] = max(known.values(), default=0) + 1
        slow: dict[tuple[int, str], None] = {}
        for (problem, first, other), equal in zip(pairs, verdicts, strict=True):
            if equal:
                class_of[problem][other] = class_of[problem][first]
            elif equal is None:
                slow |= dict.fromkeys([(problem, first), (problem, other)])
        against_1 = same(["1"] * len(slow), [text for _, text in slow]) if slow else []
        for (problem, text), equal in zip(slow, against_1, strict=True):
            if equal is None:
                class_of[problem].setdefault(text, max(class_of[problem].values()) + 1)
        unclassed = [[a for a in rest if a not in class_of[problem]] for problem, rest in enumerate(unclassed)]
    return [
        [None if a is None else 0 if ok else classes[a] for a, ok in zip(texts, row, strict=True)]
        for texts, row, classes in zip(answers, correct, class_of, strict=True)
    ]
