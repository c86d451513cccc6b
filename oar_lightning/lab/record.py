"""What a lab has found, as plain values for files: a summary, and every number of every token."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from torch import Tensor

from oar_lightning.common.jsonl import without_nan
from oar_lightning.lab.comparison import Difference, mean_over
from oar_lightning.lab.reliability import Reliability
from oar_lightning.lab.types import Findings


def to_json(findings: Findings, found: Mapping[str, Reliability | None], compared: Sequence[Difference]) -> dict[str, Any]:
    """All findings as plain values, NaN as None."""
    studied, problem = findings.studied, findings.studied.problem
    return without_nan(
        {
            "completions": [
                {"id": i, "problem": p, "correct": c} for i, p, c in zip(studied.ids, problem, studied.correct, strict=True)
            ],
            "tokens": {"reasoning": int(studied.rollouts.reasoning_mask.sum()), "free": int(studied.free.sum())},
            "truths": {
                t.name: {
                    "completions": int(t.known.any(1).sum()),
                    "tokens": int(t.known.sum()),
                    "decisive": int(t.decisive.sum()),
                    "reliability": None if (own := found[t.name]) is None else vars(own),
                }
                for t in findings.truths
            },
            "estimators": {
                e.name: {
                    "control": e.control,
                    "signed": e.signed,
                    "seconds": e.seconds,
                    "forward_equivalents": e.forward_equivalents,
                }
                for e in findings.estimates
            },
            "measures": {
                m.key: {
                    "title": m.title,
                    "better": m.better,
                    "chance": m.chance,
                    "ceiling": dict(m.ceiling),
                    "values": {name: list(values) for name, values in m.values.items()},
                    "means": {name: vars(mean_over(values, problem)) for name, values in m.values.items()},
                }
                for m in findings.measures
            },
            "curves": {
                c.key: {
                    "title": c.title,
                    "fraction": list(c.fraction),
                    "outcome": {name: list(values) for name, values in c.outcome.items()},
                }
                for c in findings.curves
            },
            "gradients": {
                name: {key: vars(interval) for key, interval in own.items()} for name, own in findings.gradients.items()
            },
            "differences": [
                {"measure": d.measure, "estimator": d.estimator, **vars(d.interval), "p": d.p, "p_holm": d.p_holm}
                for d in compared
            ],
        }
    )


def token_rows(findings: Findings) -> Iterator[dict[str, Any]]:
    """Of each completion its tokens, and on each token what the policy, the truths and the estimators say of it: lists with
    one entry a token of the response."""
    studied, rollouts = findings.studied, findings.studied.rollouts
    for row, mask in enumerate(rollouts.response_mask):

        def values(numbers: Tensor, row: int = row, mask: Tensor = mask) -> list[Any]:
            found = numbers[row, mask].tolist()
            return [float(f"{v:.9g}") for v in found] if numbers.is_floating_point() else [int(v) for v in found]

        yield without_nan(
            {
                "id": studied.ids[row],
                "problem": studied.problem[row],
                "question": rollouts.problems[row].question,
                "answer": rollouts.answers[row],
                "gold": rollouts.problems[row].answer or None,
                "correct": studied.correct[row],
                "tokens": [rollouts.completions[row][start:end] for start, end in rollouts.token_spans[row]],
                "reasoning": values(rollouts.reasoning_mask),
                "free": values(studied.free),
                "probability": values(studied.probabilities),
                "entropy": values(studied.entropy),
                "truths": {
                    t.name: {"known": values(t.known), "decisive": values(t.decisive)}
                    | ({} if t.values is None else {"value": values(t.values)})
                    | ({} if t.halves is None else {"halves": [values(half) for half in t.halves]})
                    | ({} if t.steps is None else {"step": values(t.steps)})
                    for t in findings.truths
                },
                "estimators": {
                    e.name: {"score": values(e.scores), "advantage": values(e.advantages)}
                    | ({} if e.again is None else {"again": values(e.again)})
                    for e in findings.estimates
                },
            }
        )
