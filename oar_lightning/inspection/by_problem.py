"""Recorded completions grouped by their problem: which can be used, their advantages and verdicts."""

from __future__ import annotations

import logging
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from torch import Tensor

from oar_lightning.answers.reward import Accuracy, Rewards
from oar_lightning.answers.verifier import Verdict
from oar_lightning.common.config_check import ConfigError
from oar_lightning.inspection.recorded import EncodedCompletion, GoldOnly, RecordedCompletion
from oar_lightning.objective.advantage import AdvantageConfig, group_advantages
from oar_lightning.policy.language_model import positions_of
from oar_lightning.policy.pretrained import Policy
from oar_lightning.types import Rollouts

log = logging.getLogger(__name__)


def gold_only(rewards: Rewards) -> Rewards:
    """The same rewards, of problems with a gold answer only."""
    terms = {name: GoldOnly(term, f"reward.terms.{name}") for name, term in rewards.terms.items()}
    return Rewards(terms, rewards.weights)


def most_tokens(policy: Policy, limit: int | None) -> int | None:
    """The most tokens of prompt and completion: `limit`, or fewer where the policy can read no more."""
    limits = [limit, positions_of(policy.model)]
    return min((limit for limit in limits if limit is not None), default=None)


def usable(
    group: Iterable[EncodedCompletion], max_tokens: int | None, skipped: Counter[str], block: str = "score"
) -> list[EncodedCompletion]:
    """The completions that can be scored; the others are counted in `skipped` by reason."""
    kept = []
    for encoded in group:
        if max_tokens is not None and len(encoded) > max_tokens:
            skipped[f"rows of more than {max_tokens} tokens ({block}.max_tokens, or the policy's limit)"] += 1
        elif not encoded.completion:
            skipped["rows with an empty, truncated completion"] += 1
        else:
            kept.append(encoded)
    return kept


def check_by_problem(config: AdvantageConfig, task: str) -> None:
    """Refuse standard deviations of a batch, which recorded completions do not have.

    Raises:
        ConfigError: names key, value and remedy.
    """
    if config.reads_batch:
        key, value = ("scale", "batch") if config.scale == "batch" else ("aggregation", config.aggregation)
        raise ConfigError(
            f"advantage.{key}={value} divides by a standard deviation over the batch of a step, and task={task} reads "
            f"completions problem by problem; leave out advantage.{key}"
        )
    if config.confidence_from is not None:
        log.warning(
            "advantage.confidence_from=%s: without effect, since task=%s has no steps before which it is off; advantages are "
            "those of a run before that share of its steps",
            config.confidence_from,
            task,
        )


def advantages_by_problem(
    rollouts: Rollouts, sizes: Sequence[int], weights: Tensor, config: AdvantageConfig
) -> list[float | None]:
    """Advantages within each problem, whose rows are consecutive; None for a single completion and without a gold answer."""
    vector = weights.to(rollouts.reward_terms.device)
    out: list[float | None] = []
    for terms, rewards in zip(rollouts.reward_terms.split(sizes), rollouts.rewards.split(sizes), strict=True):
        if len(terms) < 2 or bool(rewards.isnan().any()):
            out += [None] * len(terms)
        else:
            out += group_advantages(terms, vector, len(terms), config).tolist()
    return out


def verdicts(rollouts: Rollouts, rewards: Rewards) -> list[str | None]:
    """The verdicts behind the accuracy rewards of rollouts that were just judged; None without a gold answer."""
    accuracy = rewards.terms["accuracy"]
    column = rollouts.reward_terms[:, list(rewards.terms).index("accuracy")].tolist()
    judged = [i for i, value in enumerate(column) if not math.isnan(value)]
    if isinstance(accuracy, Accuracy):
        kinds = accuracy.last if judged else []
    else:
        kinds = [Verdict.CORRECT if column[i] > 0.5 else Verdict.INCORRECT for i in judged]
    found: list[str | None] = [None] * len(column)
    for i, kind in zip(judged, kinds, strict=True):
        found[i] = str(kind)
    return found


def group_by_problem(recorded: Iterable[RecordedCompletion]) -> list[list[RecordedCompletion]]:
    """Completions grouped by problem, in order of first appearance: by its id, and by its question, since two files may both
    count from 1."""
    groups: dict[tuple[str, str], list[RecordedCompletion]] = {}
    for completion in recorded:
        groups.setdefault((completion.problem.id, completion.problem.question), []).append(completion)
    return list(groups.values())


def windows(groups: Sequence[list[RecordedCompletion]], size: int) -> Iterator[list[list[RecordedCompletion]]]:
    """Windows of whole groups, each closed when it holds at least `size` completions."""
    window: list[list[RecordedCompletion]] = []
    for group in groups:
        window.append(group)
        if sum(map(len, window)) >= size:
            yield window
            window = []
    if window:
        yield window
