"""Memory of scoring, scorer by scorer: bytes as a function of `scorer.token_budget`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import singledispatch

from oar_lightning.language_model import LOGITS_CHUNK_BYTES
from oar_lightning.planning.policy import PolicySize
from oar_lightning.scoring import (
    Entropy,
    Inverted,
    OarG,
    OarP,
    OarPApproximate,
    Oracle,
    Position,
    Random,
    Scorer,
    Shuffled,
    Uniform,
)
from oar_lightning.scoring.attribution import PAIRS, Attribution
from oar_lightning.scoring.counterfactual import PADDING, PREFIX_SHARE

LOGITS_ALIVE = 4
"""Tensors of the size of a chunk of logits that are alive at once in `chunked_logprobs`."""

Cost = Callable[[int], float]
"""Token budget -> bytes."""


@dataclass(frozen=True)
class Passes:
    """What a scorer's passes are made of.

    `cache`: bytes of keys and values of a token; `forward`: of a token in a pass without gradient; `gradient(tokens)`: of a
    pass with a gradient to the embeddings. `element`: bytes of a state's number. `copies`: of weights, for `PlainDecoder`.
    """

    size: PolicySize
    prompt: int
    completion: int
    prompts: int
    completions: int
    answer: int
    cache: float
    forward: float
    gradient: Cost
    element: int
    copies: float

    @property
    def length(self) -> int:
        return self.prompt + self.completion


def plain_copies(size: PolicySize) -> float:
    """Bytes of the weights that `PlainDecoder` copies: queries, keys, values, and both halves of the MLP."""
    heads = (size.heads + 2 * size.kv_heads) * size.head_size
    return 4.0 * size.layers * size.hidden * (heads + 2 * size.intermediate)


def plain_forward(size: PolicySize) -> float:
    """Bytes of a token in `PlainDecoder` without gradient: embeddings, states, their norm, and the wider of a layer's parts."""
    attention = (3 * size.heads + 4 * size.kv_heads) * size.head_size
    return 4.0 * (4 * size.hidden + max(attention, 2 * size.intermediate))


def plain_gradient(size: PolicySize) -> float:
    """Bytes of a token that `PlainDecoder` keeps for a gradient to the embeddings.

    A layer keeps its states twice, what is projected, what is rotated, keys and values beside the past's, what is attended,
    both halves of the MLP and the activated one; the last layer, which runs only where it is read, keys and values. (What the
    way back needs beside them is less than what it has freed by then.)
    """
    heads = (3 * size.heads + 5 * size.kv_heads) * size.head_size
    layer = 2 * size.hidden + heads + 3 * size.intermediate
    last = size.hidden + 5 * size.kv_heads * size.head_size
    return 4.0 * ((size.layers - 1) * layer + last + 2 * size.hidden)


def rows_of(passes: Passes, budget: int, length: int) -> int:
    """Rows of a batch: within the budget, one at least, no more than there are."""
    return min(passes.completions, max(1, budget // length))


def answer_logits(passes: Passes, rows: float) -> float:
    """Bytes of reading the outcome of so many rows, with its gradient: float32 logits of each answer token three times,
    and ten tensors of one number for each token of the vocabulary."""
    return 4.0 * rows * passes.size.vocabulary * (3 * passes.answer + 10)


def gradient_batch(passes: Passes, budget: int) -> float:
    """OAR-G: rows of completions after prompts that were read once."""
    rows = rows_of(passes, budget, passes.completion)
    prompts = passes.cache * passes.prompt * (passes.prompts + 2 * rows)  # all; a batch's copies; what its layers keep
    return passes.copies + prompts + passes.gradient(rows * passes.completion) + answer_logits(passes, rows)


def counterfactual_batch(passes: Passes, budget: int) -> float:
    """OAR-P: the dearest batch of counterfactuals, each with a copy of its prefix's keys and values; and the clean texts.

    A counterfactual that runs `w` of `S` tokens counts max(w, S / PREFIX_SHARE) in the budget, and a batch holds lengths that
    are at most PADDING apart.
    """
    total = passes.length
    texts = rows_of(passes, budget, total)
    shortest = -(-total // PREFIX_SHARE)
    layer = passes.cache / passes.size.layers  # one layer's prefix and suffix are joined at a time

    def batch(width: int) -> float:
        copies = min(budget // max(width, shortest), texts * (shortest if width <= shortest else PADDING + 1))
        kept = (total - width) * passes.cache + total * layer + width * passes.forward
        return max(1, copies) * kept + answer_logits(passes, max(1, copies)) / 2

    widths = {1, shortest, shortest + 1, *range(1, total + 1, max(1, total // 64)), total}
    return passes.copies + clean_texts(passes, texts) + max(map(batch, widths))


def clean_texts(passes: Passes, texts: int) -> float:
    """Keys and values of texts, their prompts' own, and what stands in masked places."""
    kept = passes.length * (passes.cache + passes.size.hidden * passes.element)
    return texts * (kept + 2 * passes.prompt * passes.cache)


def attribution_batch(passes: Passes, budget: int, directions: int) -> float:
    """First-order estimates: activations of whole texts, gradients of every attention output in each direction, what stands
    alone in each masked place, and blocks of attention weights; or the counterfactuals that follow."""
    size = passes.size
    texts = rows_of(passes, budget, passes.length)
    tokens = texts * passes.length
    of_heads = size.heads * size.head_size * 4.0
    run = texts * passes.completion  # prompts are read once, without gradient
    outs = directions * size.layers * of_heads * run
    alone = size.layers * 2 * of_heads * tokens + 2 * passes.cache * tokens
    spread = 6 * of_heads * tokens
    blocks = 6 * 4.0 * PAIRS
    reading = passes.gradient(run) + outs
    comparing = outs + alone + spread + blocks + passes.cache * tokens + size.layers * 2 * of_heads * tokens
    first = passes.copies + clean_texts(passes, texts) + answer_logits(passes, texts) + max(reading, comparing)
    return max(first, counterfactual_batch(passes, budget))


@singledispatch
def scoring_cost(scorer: Scorer, passes: Passes) -> Cost | None:
    """Bytes by token budget; None for a scorer of which nothing is known here."""
    return None


@scoring_cost.register(Uniform)
@scoring_cost.register(Random)
@scoring_cost.register(Position)
@scoring_cost.register(Oracle)
def _free(scorer: Scorer, passes: Passes) -> Cost:
    return lambda budget: 0.0


@scoring_cost.register
def _entropy(scorer: Entropy, passes: Passes) -> Cost:
    return lambda budget: passes.forward * max(budget, passes.length) + LOGITS_ALIVE * LOGITS_CHUNK_BYTES


@scoring_cost.register
def _oar_g(scorer: OarG, passes: Passes) -> Cost:
    return lambda budget: gradient_batch(passes, budget)


@scoring_cost.register
def _oar_p(scorer: OarP, passes: Passes) -> Cost:
    return lambda budget: counterfactual_batch(passes, budget)


@scoring_cost.register
def _oar_p_approximate(scorer: OarPApproximate, passes: Passes) -> Cost:
    coarse = scorer.coarse
    if not isinstance(coarse, Attribution):
        return lambda budget: counterfactual_batch(passes, budget)
    return lambda budget: attribution_batch(passes, budget, coarse.directions)


@scoring_cost.register(Shuffled)
@scoring_cost.register(Inverted)
def _around(scorer: Shuffled | Inverted, passes: Passes) -> Cost | None:
    return scoring_cost(scorer.inner, passes)


def scorer_budget(scorer: Scorer) -> int | None:
    """Its token budget, or that of the scorer inside of it."""
    return next((budget.tokens for budget in scorer.budgets), None)
