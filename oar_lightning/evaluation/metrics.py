"""Accuracies of evaluated problems: avg@k, unbiased pass@j, majority vote, greedy, with Wilson's intervals over problems."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from oar_lightning.common.ordering import natural, numbered
from oar_lightning.common.wilson import wilson_bounds
from oar_lightning.evaluation.result import ProblemResult


def evaluation_metrics(results: Sequence[ProblemResult]) -> dict[str, float]:
    """All metrics of problems with k samples each, as fractions in [0, 1].

    ``avg_at_k``; ``pass_at_j`` for the powers of two j <= k and for k; ``maj_at_k``; ``greedy`` where decoded. Each (of pass
    only that at k) has its 95 % interval over problems in ``_low`` and ``_high``. ``answered`` and ``truncated`` are fractions
    of samples. Where problems have a level, ``level_<name>/`` holds ``avg_at_k`` with its interval, and the number of
    ``problems``. The keys contain no @, which MLflow refuses.

    Raises:
        ValueError: without results, or where problems differ in their number of samples.
    """
    samples = {len(r.correct) for r in results}
    if len(samples) != 1:
        raise ValueError(f"metrics need problems with the same number of samples each, got {sorted(samples) or 'no problem'}")
    k = samples.pop()
    correct = torch.tensor([r.correct for r in results], dtype=torch.double)
    out = _with_interval(f"avg_at_{k}", correct.mean(1), k)
    for j in _passes(k):
        values = pass_at_k(correct, j)
        out |= _with_interval(f"pass_at_{j}", values) if j == k else {f"pass_at_{j}": float(values.mean())}
    out |= _with_interval(f"maj_at_{k}", torch.tensor([majority_vote(r.classes) for r in results], dtype=torch.double))
    greedy = [r.greedy_correct for r in results if r.greedy_correct is not None]
    if len(greedy) == len(results):
        out |= _with_interval("greedy", torch.tensor(greedy, dtype=torch.double))
    total = k * len(results)
    out["answered"] = sum(a is not None for r in results for a in r.answers) / total
    out["truncated"] = sum(t for r in results for t in r.truncated) / total
    for name, rows in level_groups([r.level for r in results]).items():
        out |= _with_interval(f"level_{name}/avg_at_{k}", correct[rows].mean(1), k)
        out[f"level_{name}/problems"] = float(len(rows))
    return out


def metric_names(samples: int, greedy: bool) -> list[str]:
    """The names of the metrics that every evaluation has, without the ends of their intervals."""
    names = [f"avg_at_{samples}", *(f"pass_at_{j}" for j in _passes(samples)), f"maj_at_{samples}"]
    return [*names, *(["greedy"] if greedy else []), "answered", "truncated"]


def _passes(k: int) -> list[int]:
    """The j of pass@j: powers of two up to k, and k."""
    return sorted({2**i for i in range(k.bit_length())} | {k})


def _with_interval(name: str, values: Float[Tensor, " P"], samples: int = 1) -> dict[str, float]:
    low, high = interval_over_problems(values, samples)
    return {name: float(values.mean()), f"{name}_low": low, f"{name}_high": high}


def pass_at_k(correct: Float[Tensor, "P n"], k: int) -> Float[Tensor, " P"]:
    """Unbiased pass@k of each problem: 1 - C(n - c, k) / C(n, k) for c correct of n samples (arXiv 2107.03374)."""
    n = correct.shape[1]
    if not 1 <= k <= n:
        raise ValueError(f"pass@{k} needs 1 <= k <= {n} samples a problem")
    wrong = (n - correct.sum(1)).round().long().tolist()
    return torch.tensor([1 - math.comb(w, k) / math.comb(n, k) for w in wrong], dtype=torch.double)


def majority_vote(classes: Sequence[int | None]) -> float:
    """The probability that the most frequent answer class is the gold answer's (0), where ties are broken at random.

    Completions without an answer (None) do not vote; without any vote the probability is 0.
    """
    votes = Counter(c for c in classes if c is not None)
    if not votes:
        return 0.0
    most = max(votes.values())
    tied = [c for c, count in votes.items() if count == most]
    return (0 in tied) / len(tied)


def interval_over_problems(values: Float[Tensor, " P"], samples: int = 1) -> tuple[float, float]:
    """Wilson's 95 % interval of the mean of problems' values in [0, 1], each the mean of `samples` draws.

    Draws of one problem are alike. n is how many independent draws would scatter as the problems' values do: between the
    number of problems (draws of one are the same) and that of all draws (they have nothing in common). Equal values tell
    nothing of their scatter: it is the number of problems then. The scatter of few problems is not known well, for which n is
    lowered by the square of a ratio of Student's quantiles (Korn and Graubard 1998).
    """
    problems, share = len(values), float(values.mean())
    differ = float(values.max() - values.min()) > 1e-9  # the variance of equal ones is rounding, of 1/3 for example
    error = float(values.var(correction=1)) / problems if differ else 0.0
    n = share * (1 - share) / error if error > 0 else 0.0
    n = min(max(n, problems), problems * samples)
    if problems > 1:
        from scipy.special import stdtrit  # takes 0.2 s

        n *= float(stdtrit(n - 1, 0.975) / stdtrit(problems - 1, 0.975)) ** 2
    return wilson_bounds(share, n)


def level_groups(levels: Sequence[str]) -> dict[str, list[int]]:
    """Name of a level in metric keys -> places of its problems, sorted by level; empty where no problem has a level.

    ``Level 5`` becomes ``5``, ``very hard`` ``very_hard``; problems without a level are ``none``. Of levels with equal names
    the later ones get a number.
    """
    groups: dict[str, list[int]] = {}
    for place, level in enumerate(levels):
        groups.setdefault(level, []).append(place)
    if set(groups) <= {""}:
        return {}
    ordered = sorted(groups, key=natural)
    names = [re.sub(r"^level_(?=.)", "", re.sub(r"[\W_]+", "_", level.lower()).strip("_")) or "none" for level in ordered]
    return {name: groups[level] for name, level in zip(numbered(names), ordered, strict=True)}
