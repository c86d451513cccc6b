"""Judges, scores and gates recorded completions; advantages are relative to the completions of the same problem."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch

from oar_lightning.answers.verifier import Verdict
from oar_lightning.common.ranges import NonNegativeInt, PositiveInt, Rule, checked
from oar_lightning.credit.assign import assign_credit
from oar_lightning.credit.fit import check_fit
from oar_lightning.credit.gates import Gate
from oar_lightning.credit.scorers import Scorer
from oar_lightning.inspection.by_problem import (
    advantages_by_problem,
    gold_only,
    group_by_problem,
    most_tokens,
    usable,
    verdicts,
    windows,
)
from oar_lightning.inspection.heatmap import HeatmapCompletion
from oar_lightning.inspection.recorded import EncodedCompletion, RecordedCompletion, encode_recorded, to_generation
from oar_lightning.inspection.token_credit import heatmap_completions
from oar_lightning.objective.advantage import AdvantageConfig
from oar_lightning.objective.diagnostics import weight_shape
from oar_lightning.objective.metric_sums import MetricSums
from oar_lightning.policy.language_model import evaluating
from oar_lightning.policy.lm_head import token_logprobs
from oar_lightning.policy.pretrained import Policy
from oar_lightning.policy.token_text import encodable
from oar_lightning.rollout import RolloutStage, SamplingConfig
from oar_lightning.rollout.assemble import drawn_at
from oar_lightning.rollout.continuations import RolloutTools
from oar_lightning.types import AFTER_WARMUP, Credit, Rollouts

WINDOW_BATCHES = 8
"""Completions are sorted by length within windows of so many batches, which keeps padding small and memory bounded."""


@checked(
    "score",
    Rule(
        lambda output: output is None or output.endswith((".jsonl", ".jsonl.gz")),
        "score.output must end in .jsonl or .jsonl.gz, got {output}",
    ),
)
@dataclass(frozen=True)
class ScoreConfig:
    """The input and output of task=score.

    Args:
        files: JSONL files (gzip too) of recorded completions, or glob patterns.
        output: JSONL of their scores (``.gz`` compresses); None: scores.jsonl.gz in the run's folder.
        batch: completions scored at once; bounds memory. Numbers change by rounding. Where scorer or gate compare completions,
            these are those of a problem, all at once: here are no steps.
        max_tokens: most tokens of prompt and completion; longer ones are skipped and counted. None: the policy's limit.
        heatmaps: number of problems, the first ones, whose heat-map is written beside the output.
        limit: number of usable rows to read, the first ones; None for all.
    """

    files: str | Sequence[str] = ()
    output: str | None = None
    batch: PositiveInt = 16
    max_tokens: PositiveInt | None = None
    heatmaps: NonNegativeInt = 3
    limit: PositiveInt | None = None


class ScoredCompletion(NamedTuple):
    """A completion with its credit. `advantage` is None for the only completion of a problem; without a gold answer
    `advantage` and `verdict` are None. Without an advantage weights that are ratios to it (`gate=signed`) are NaN."""

    recorded: RecordedCompletion
    shown: HeatmapCompletion
    advantage: float | None
    verdict: str | None
    changed: bool
    """Whether the text of its tokens differs from the recorded text."""

    def to_json(self) -> dict[str, Any]:
        """Plain values; lists hold one entry a token; entropy in nats. Numbers that are not finite become None."""
        tokens = self.shown.tokens
        return {
            "id": self.recorded.id,
            "problem_id": self.recorded.problem.id,
            "answer": self.shown.answer,
            "gold": self.recorded.problem.answer or None,
            "verdict": self.verdict,
            "label": self.recorded.label,
            "truncated": self.recorded.truncated,
            "reward": _number(self.shown.reward),
            "advantage": None if self.advantage is None else _number(self.advantage),
            "tokens": [t.text for t in tokens],
            "regions": [t.region.name.lower() for t in tokens],
            "importance": [_number(t.score) for t in tokens],
            "weights": [_number(t.weight) for t in tokens],
            "entropy": [_number(t.entropy) for t in tokens],
        }


def _number(value: float) -> float | None:
    return float(f"{value:.6g}") if math.isfinite(value) else None


@dataclass
class CompletionScorer:
    """Scores recorded completions problem by problem; `skipped` counts by reason the rows that are left out."""

    policy: Policy
    stage: RolloutStage
    scorer: Scorer
    gate: Gate
    advantage: AdvantageConfig
    sampling: SamplingConfig
    config: ScoreConfig
    skipped: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        if self.scorer.only_in_training:
            raise ValueError(
                f"{type(self.scorer).__name__} compares the policy with its past in training, which recorded completions do "
                "not have; use another scorer"
            )
        check_fit(self.scorer, self.gate)
        tools = RolloutTools(self.stage, self.sampling)
        self.scorer.use(tools)
        self.gate.use(tools)
        self.gold_only_stage = dataclasses.replace(self.stage, rewards=gold_only(self.stage.rewards))
        self.max_tokens = most_tokens(self.policy, self.config.max_tokens)

    def __call__(
        self, recorded: Iterable[RecordedCompletion], advance: Callable[[int], None]
    ) -> Iterator[list[list[ScoredCompletion]]]:
        """The scored completions grouped by problem (same `problem_id`, or without one same question and gold answer), several
        problems at a time, in order of appearance. `advance` gets the number of completions that were just scored or skipped.
        """
        for window in windows(group_by_problem(recorded), self.config.batch * WINDOW_BATCHES):
            encoded = [encode_recorded(group, self.policy.tokenizer, self.stage.prompt) for group in window]
            groups = [usable(group, self.max_tokens, self.skipped) for group in encoded]
            advance(sum(map(len, window)) - sum(map(len, groups)))
            if groups := [group for group in groups if group]:
                yield self._score(groups, advance)

    def _score(self, groups: list[list[EncodedCompletion]], advance: Callable[[int], None]) -> list[list[ScoredCompletion]]:
        encoded = [e for group in groups for e in group]
        device = self.policy.model.get_input_embeddings().weight.device
        generation = to_generation(encoded, self.stage.pad_token_id, device)
        judged = self.gold_only_stage.judge(generation, [e.recorded.problem for e in encoded], 1, AFTER_WARMUP)
        rollouts = drawn_at(self.sampling.temperature, judged)
        weights, sizes = self.stage.rewards.weight_vector(), [len(group) for group in groups]
        advantages = advantages_by_problem(rollouts, sizes, weights, self.advantage)
        said = verdicts(rollouts, self.stage.rewards)
        scored: dict[int, ScoredCompletion] = {}
        for rows in self._batches(groups):
            part = rollouts.select(torch.tensor(rows, device=device))
            if self._compares:
                part = dataclasses.replace(part, group_size=len(rows))
            shown = self._credit(part, [advantages[row] for row in rows], [said[row] for row in rows])
            for row, completion in zip(rows, shown, strict=True):
                changed = rollouts.completions[row] != encodable(encoded[row].recorded.text)
                scored[row] = ScoredCompletion(encoded[row].recorded, completion, advantages[row], said[row], changed)
            advance(len(rows))
        ends = list(itertools.accumulate(len(group) for group in groups))
        return [[scored[row] for row in range(end - len(group), end)] for group, end in zip(groups, ends, strict=True)]

    @property
    def _compares(self) -> bool:
        return any(part.reads_groups or part.reads_step for part in (self.scorer, self.gate))

    def _batches(self, groups: list[list[EncodedCompletion]]) -> Iterator[list[int]]:
        """Rows that are scored at once: whole problems where scorer or gate compare them, else rows of like length."""
        lengths = [len(encoded) for group in groups for encoded in group]
        rows = list(range(len(lengths)))
        if self._compares:
            ends = itertools.accumulate(map(len, groups))
            yield from (rows[end - len(group) : end] for end, group in zip(ends, groups, strict=True))
            return
        by_length = sorted(rows, key=lengths.__getitem__)
        yield from (by_length[i : i + self.config.batch] for i in range(0, len(rows), self.config.batch))

    def _credit(self, part: Rollouts, advantages: list[float | None], verdicts: list[str | None]) -> list[HeatmapCompletion]:
        model = self.policy.model
        known = torch.tensor([0.0 if a is None else a for a in advantages], device=part.token_ids.device)
        credit = assign_credit(model, dataclasses.replace(part, advantages=known), self.scorer, self.gate, everything=True)
        with evaluating(model), torch.no_grad():
            entropy = token_logprobs(model, part.token_ids, part.attention_mask, part.response_mask, part.temperature)[1]
        correct = [None if verdict is None else verdict == Verdict.CORRECT for verdict in verdicts]
        credit = without_undefined(credit, part, advantages)
        return heatmap_completions(part, self.stage.token_bytes, credit, entropy, advantages, correct)


def without_undefined(credit: Credit, rollouts: Rollouts, advantages: Sequence[float | None]) -> Credit:
    """NaN for the weights of completions without an advantage, where a gate's weights are ratios to it (see `shaped`)."""
    unknown = torch.tensor([advantage is None for advantage in advantages], device=credit.weights.device)
    ratios = ~(credit.weights.bool() & rollouts.response_mask).any(1)
    return dataclasses.replace(credit, weights=credit.weights.masked_fill((unknown & ratios)[:, None], torch.nan))


class ScoreSummary:
    """Counts and mean metrics of all completions scored so far, for a table."""

    def __init__(self) -> None:
        self.completions = self.with_answer = self.labelled = self.agree = self.changed = 0
        self.verdicts: Counter[str] = Counter()
        self._weights = MetricSums()

    def add(self, scored: ScoredCompletion) -> None:
        self.completions += 1
        self.with_answer += scored.shown.answer is not None
        self.changed += scored.changed
        self.verdicts[scored.verdict or "no gold answer"] += 1
        if scored.verdict is not None and scored.recorded.label is not None:
            self.labelled += 1
            self.agree += (scored.verdict == Verdict.CORRECT) == scored.recorded.label
        weights = [abs(t.weight) for t in scored.shown.tokens if t.region.name == "REASONING"]
        if weights and not any(map(math.isnan, weights)):
            shape = weight_shape(torch.tensor(weights, dtype=torch.double))
            self._weights.add({key: (shape[key], 1.0) for key in ("top10_mass", "ess_ratio")})

    def rows(self) -> list[tuple[str, str]]:
        """(label, value) in display order."""
        out = [("completions", str(self.completions)), ("with an answer", str(self.with_answer))]
        out += [(f"verdict {name}", str(count)) for name, count in sorted(self.verdicts.items())]
        if self.labelled:
            out.append(("verdict agrees with label", f"{self.agree} of {self.labelled}"))
        return out + [(f"mean {name} of the weights", f"{value:.4f}") for name, value in self._weights.means().items()]
