"""What every scorer of conf/scorer owes its caller, on groups with advantages, texts, a reference and the tools of a run."""

from __future__ import annotations

import copy
import dataclasses
import functools
import inspect
import zlib
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from hydra.utils import get_class
from omegaconf import OmegaConf
from support.families import FAMILIES
from support.toy import gpt2, padded, rollouts_of, tools
from torch import Tensor

from oar_lightning.common.paths import conf_dir
from oar_lightning.credit.component import region_mask
from oar_lightning.credit.judges import SpanJudge
from oar_lightning.credit.scorers import (
    AnchorStates,
    Capo,
    Entropy,
    InformationGain,
    Inverted,
    IStar,
    MinForm,
    MonteCarlo,
    OarG,
    OarP,
    OarPApproximate,
    OarPSteps,
    Oracle,
    Position,
    Prime,
    Random,
    Scorer,
    Shuffled,
    Spae,
    Spro,
    TotalEffect,
    TotalEffectFast,
    TurningPoint,
    Uniform,
    implicit,
)
from oar_lightning.credit.scorers.forward_free import (
    EntropyAdvantage,
    Gtpo,
    Hicra,
    Ktae,
    Otb,
    Probability,
    Shear,
    Steer,
    Ucas,
    confidence,
)
from oar_lightning.credit.scorers.hindsight import ActionMask, Contrast, Rlsd, Serl
from oar_lightning.credit.scorers.reference import ReferenceOarG, ReferenceOarP
from oar_lightning.credit.segments import FixedLength
from oar_lightning.policy.language_model import evaluating, prediction_states
from oar_lightning.policy.pretrained import LoraSpec
from oar_lightning.types import CausalSpans, Continued, MathProblem, Prefix, Rollouts

STEPS = FixedLength(2)


def where_e(problem: MathProblem, text: str) -> CausalSpans:
    return CausalSpans(tuple((i, i + 1) for i, c in enumerate(text) if c == "e"), True)


def where_n(problem: MathProblem, text: str) -> CausalSpans:
    return CausalSpans(tuple((i, i + 1) for i, c in enumerate(text) if c == "n"), True)


SCORERS: dict[str, Callable[..., Scorer]] = {
    "action_mask": functools.partial(ActionMask, where_e),
    "anchor_states": functools.partial(AnchorStates, where_e),
    "capo": lambda: Capo(SpanJudge(lambda problem, text: where_e(problem, text).spans), STEPS),
    "contrast": Contrast,
    "entropy": Entropy,
    "entropy_advantage": functools.partial(EntropyAdvantage, alpha=0.02),
    "gtpo": Gtpo,
    "hicra": Hicra,
    "information_gain": functools.partial(InformationGain, STEPS),
    "inverted": lambda **knobs: Inverted(OarG(**knobs)),
    "istar": functools.partial(IStar, STEPS, lr=1e-3),
    "ktae": Ktae,
    "min_form": lambda **knobs: MinForm(InformationGain(STEPS, **knobs)),
    "monte_carlo": functools.partial(MonteCarlo, STEPS, samples=3),
    "oar_g": OarG,
    "oar_p": OarP,
    "oar_p_approximate": OarPApproximate,
    "oar_p_steps": functools.partial(OarPSteps, segments=STEPS),
    "oracle": lambda: Oracle(where_e),
    "oracle_signed": lambda: Oracle(where_e, where_n),
    "otb": Otb,
    "position": functools.partial(Position, "late"),
    "prime": functools.partial(Prime, lr=1e-3),
    "probability": Probability,
    "random": Random,
    "reference_oar_g": ReferenceOarG,
    "reference_oar_p": ReferenceOarP,
    "rlsd": Rlsd,
    "serl": functools.partial(Serl, where_e),
    "shear": Shear,
    "shuffled": lambda **knobs: Shuffled(OarG(**knobs)),
    "spae": functools.partial(Spae, STEPS),
    "spro": Spro,
    "steer": Steer,
    "total_effect": functools.partial(TotalEffect, free_below=1.0),
    "total_effect_fast": TotalEffectFast,
    "turning_point": TurningPoint,
    "ucas": Ucas,
    "uniform": Uniform,
}
TEXTS_ALONE = {
    *("action_mask", "anchor_states", "capo", "hicra", "ktae", "oracle", "oracle_signed", "position", "random", "uniform"),
}
WITHOUT_THE_MODEL = TEXTS_ALONE | {"istar", "monte_carlo", "prime", "spro"}
"""Their scores come from texts, tokens, rewards or log-probabilities that are there, or from a model of their own."""
REARRANGED = {"inverted", "shuffled"}
SEQUENCES = [
    {"before": [3, 4, 5, 6], "reasoning": [8, 9, 10, 11, 12], "conclude": [11], "answer": [12, 13, 14], "tail": [1]},
    {"before": [3, 4, 5, 6], "reasoning": [15, 16, 17, 18, 19, 20, 21], "answer": [22]},
    {"before": [23, 24], "reasoning": [25], "conclude": [26, 27], "answer": [28, 29], "tail": [31, 32]},
    {"before": [23, 24], "reasoning": [33, 33, 34, 33, 35], "conclude": [36], "answer": [37, 38]},
]
TEXTS = ("so next one", "then we need to", "e ab", "first, it is")

HERE = [name for name in SCORERS if name != "contrast"]
"""Contrasts need groups of three or more, which are in scorers/hindsight/test_contrast.py; here two ranks have such."""

every_scorer = pytest.mark.parametrize("name", HERE)


def continuations(
    model: Any, rollouts: Rollouts, prefixes: Sequence[Prefix], samples: int, seed: int, greedy: bool = False
) -> Continued:
    """Rewards that depend on the prefix's tokens and the seed alone."""
    rows = []
    for row, column in prefixes:
        before = rollouts.token_ids[row, :column][rollouts.attention_mask[row, :column]].tolist()
        rows.append([zlib.crc32(repr((before, k, seed)).encode()) % 2 for k in range(samples)])
    return Continued(torch.tensor(rows, dtype=torch.float32).view(-1, samples), len(rows) * samples, 0)


def reprompt(rollouts: Rollouts, questions: Sequence[str]) -> Rollouts:
    """A prompt of two tokens that depend on the question, in place of each row's."""
    before = rollouts.attention_mask & ~rollouts.response_mask
    ids, attention = rollouts.token_ids.clone(), rollouts.attention_mask & ~before
    for row, question in enumerate(questions):
        start = int(rollouts.response_mask[row].long().argmax())
        ids[row, start - 2 : start] = torch.tensor([10, 30]) + zlib.crc32(question.encode()) % 9
        attention[row, start - 2 : start] = True
    return dataclasses.replace(rollouts, token_ids=ids, attention_mask=attention, prediction_states=None)


LENT = tools(continuations, reprompt, encode=lambda before, text: ([36], [39]))


def make(name: str, **knobs: Any) -> Scorer:
    """A scorer; its own model, where it has one, has learnt."""
    scorer = SCORERS[name](**knobs)
    scorer.use(LENT)
    if isinstance(scorer, implicit.ImplicitRewards):
        scorer.load_state_dict(learnt(name))
        scorer.begin(gpt2())
    return scorer


@functools.cache
def learnt(name: str) -> dict[str, Any]:
    scorer = SCORERS[name]()
    scorer.learn(gpt2(), given())
    return scorer.state_dict()


def takes(name: str, knob: str) -> bool:
    """Whether a scorer, or the one that it wraps, has a setting."""
    kind = {"min_form": InformationGain, "inverted": OarG, "shuffled": OarG}.get(name, type(make(name)))
    return knob in inspect.signature(kind).parameters


def given() -> Rollouts:
    rollouts = rollouts_of(
        SEQUENCES,
        group_size=2,
        completions=TEXTS,
        rewards=torch.tensor([1.0, 0.0, 0.0, 1.0]),
        problems=tuple(MathProblem(question, gold) for question, gold in (("a", "12"), ("a", "12"), ("b", "7"), ("b", "7"))),
        answers=("12", "22", "2829", "7"),
    )
    rng = torch.Generator().manual_seed(0)
    old, ref = (-torch.rand(rollouts.token_ids.shape, generator=rng, dtype=torch.float64) for _ in range(2))
    counts = rollouts.response_mask.sum(1).tolist()
    return dataclasses.replace(
        rollouts,
        advantages=torch.tensor([1.0, -1.0, 0.5, 0.3], dtype=torch.float64),
        token_spans=tuple(
            tuple((min(i, len(t) - 1), min(i + 1, len(t))) if i < n - 1 else (n - 1, len(t)) for i in range(n))
            for n, t in zip(counts, TEXTS, strict=True)
        ),
        old_logprobs=old * rollouts.response_mask,
        ref_logprobs=ref * rollouts.response_mask,
    )


@functools.cache
def scores_of(name: str) -> Tensor:
    """The scores by the float64 model."""
    return make(name)(gpt2(), given())


def assert_scores(name: str, scores: Tensor, rollouts: Rollouts, scorer: Scorer) -> None:
    assert scores.shape == rollouts.token_ids.shape
    assert scores.is_floating_point()
    assert scores.isfinite().all()
    assert not scores.requires_grad
    assert scores.grad_fn is None
    assert not scores[~region_mask(rollouts, scorer.covers)].any()
    assert scorer.signed or (scores >= 0).all()
    assert scores.any() == (name != "uniform")


def close(actual: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(actual, expected, rtol=1e-7, atol=1e-12)


def test_no_scorer_is_missing() -> None:
    """And each is the one that its file names."""
    files = {path.stem: OmegaConf.load(path) for path in (conf_dir() / "scorer").glob("*.yaml")}
    assert {name: type(make(name)) for name in SCORERS} == {name: get_class(file["_target_"]) for name, file in files.items()}


@every_scorer
def test_scores_and_what_is_left_of_the_model(name: str) -> None:
    """Gradients (some set, some None), weights, requires_grad, a mixed training mode, grad mode and the global generator."""
    model, rollouts = gpt2(), given()
    for i, parameter in enumerate(model.parameters()):
        parameter.grad = torch.full_like(parameter, 7.0) if i % 3 == 0 else None
        parameter.requires_grad_(i % 5 != 4)
    model.transformer.h[1].eval()
    grads = [p.grad for p in model.parameters()]
    before = copy.deepcopy([(p.detach(), p.grad, p.requires_grad) for p in model.parameters()])
    modes, state = [m.training for m in model.modules()], torch.get_rng_state()
    for region in ("reasoning", "response") if takes(name, "region") else (None,):
        scorer = make(name, **({"region": region} if region else {}))
        with torch.set_grad_enabled(region == "reasoning"):
            scores = scorer(model, rollouts)
            assert torch.is_grad_enabled() == (region == "reasoning")
        assert_scores(name, scores, rollouts, scorer)
    if not takes(name, "region"):
        close(scores, scores_of(name))
    assert [m.training for m in model.modules()] == modes
    assert torch.equal(torch.get_rng_state(), state)
    for p, grad, (value, former, requires_grad) in zip(model.parameters(), grads, before, strict=True):
        assert torch.equal(p.detach(), value)
        assert p.requires_grad == requires_grad
        assert p.grad is grad
        assert grad is None or torch.equal(grad, former)


@every_scorer
def test_padding_and_the_order_of_groups_do_not_matter(name: str) -> None:
    model, rollouts, expected = gpt2(), given(), scores_of(name)
    close(make(name)(model, padded(rollouts, 3, 2))[:, 3 : 3 + expected.shape[1]], expected)
    order = torch.tensor([2, 3, 0, 1])
    turned = dataclasses.replace(rollouts.select(order), group_size=2)
    close(make(name)(model, turned), expected[order])


def in_fours() -> Rollouts:
    """Two groups of four, of which the first has one wrong completion and the second one right one."""
    rollouts = given().select(torch.tensor([0, 1, 2, 3, 3, 2, 1, 0]))
    signs = torch.tensor([1.0, -1.0, 0.5, 0.3, 1.0, -0.4, -0.5, -0.3], dtype=torch.float64)
    problems = tuple(MathProblem(question, "12") for question in "aaaabbbb")
    return dataclasses.replace(rollouts, group_size=4, advantages=signs, problems=problems)


@pytest.mark.parametrize("name", SCORERS)
def test_two_ranks_score_as_one(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each has one of the groups. What they tell each other is recorded first, and then heard by both."""
    model, rollouts = gpt2(), in_fours() if name == "contrast" else given()
    expected = make(name)(model, rollouts) if name == "contrast" else scores_of(name)
    size = rollouts.group_size
    assert name != "contrast" or (expected[:size].any() and expected[size:].any())
    told: list[list[Any]] = [[], []]
    for _ in range(4 if name == "prime" else 2):  # what it tells later depends on what it has heard
        parts, said = [], [[], []]
        for rank in (0, 1):

            def all_gather(value: Any, rank: int = rank, said: Any = said, told: Any = told) -> list[Any]:
                place = len(said[rank])
                said[rank].append(value)
                return [one[place] for one in told] if any(told) else [value]

            for module in (confidence, implicit.base, implicit.prime):
                monkeypatch.setattr(module, "all_gather", all_gather)
            rows = torch.arange(size) + size * rank
            part = dataclasses.replace(rollouts.select(rows), group_size=size)
            whole = torch.zeros_like(expected[rows])
            whole[:, rollouts.columns(rows)] = make(name)(model, part)
            parts.append(whole)
        if not any(said):
            break
        told = said
    close(torch.cat(parts), expected)


THERE = {"entropy", "information_gain", "inverted", "oar_g", "oar_p", "shuffled", "total_effect", "total_effect_fast"}
"""Their chunks are in scorers/test_contract.py too."""


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(n, marks=pytest.mark.slow) if n in THERE else n
        for n in SCORERS
        if takes(n, "token_budget") and n != "contrast"
    ],
)
def test_chunks_do_not_matter(name: str) -> None:
    model, rollouts, expected = gpt2(), given(), scores_of(name)
    close(make(name, token_budget=1)(model, rollouts), expected)


@pytest.mark.parametrize("name", ["entropy", "entropy_advantage", "gtpo", "otb", "probability", "shear", "steer", "ucas"])
def test_kept_states_spare_the_pass_and_change_nothing(name: str) -> None:
    model, rollouts = gpt2(), given()
    with evaluating(model):
        states = prediction_states(model, rollouts.attention_mask, rollouts.token_ids).detach()
    known = make(name)
    close(known(model, dataclasses.replace(rollouts, prediction_states=states)), scores_of(name))
    assert known.metrics["forward_equivalents"] == 0


def relative_error(actual: Tensor, expected: Tensor, name: str) -> float:
    """The largest, over the largest score. Of controls, whose ranks may swap by rounding, the sorted scores are compared."""
    actual, expected = actual.double(), expected.double()
    if name in REARRANGED:
        actual, expected = actual.sort(1).values, expected.sort(1).values
    return float((actual - expected).abs().max() / expected.abs().max().clamp(min=1e-12))


@every_scorer
def test_lower_precisions_follow_float64(name: str) -> None:
    """In bfloat16 OAR-G's are of the same size and no more: it differentiates a KL of outcomes 1e-3 apart. Measured: at most
    6e-2 else, on another kind of processor 0.11 (fast total effect); in float32 6e-5 (UCAS, by a spread) and 1e-4 (OAR-G)."""
    model, rollouts, expected = gpt2(), given(), scores_of(name)
    by_gradients = name in REARRANGED or "oar_g" in name
    in_bfloat16 = 1.0 if by_gradients else 0.2 if name == "total_effect_fast" else 0.1
    for dtype, most in ((torch.float32, 1e-3 if by_gradients else 2e-4), (torch.bfloat16, in_bfloat16)):
        scorer = make(name)
        scores = scorer(copy.deepcopy(model).to(dtype), rollouts)
        assert_scores(name, scores, rollouts, scorer)
        assert relative_error(scores, expected, name) < most


@every_scorer
def test_adapters(name: str) -> None:
    """Fresh ones change no score, trained ones do; they are what may have gradients, and get none."""
    torch.manual_seed(0)
    model, rollouts = FAMILIES["qwen2"]().double(), given()
    with torch.no_grad():
        for p in model.parameters():
            p.mul_(1 if p.ndim == 1 else 8)
    expected = make(name)(model, rollouts)
    adapted = LoraSpec(r=4, alpha=8).apply(copy.deepcopy(model)).double().train()
    close(make(name)(adapted, rollouts), expected)
    with torch.no_grad():
        for key, p in adapted.named_parameters():
            if "lora_B" in key:
                p.normal_(std=0.3)
    wanted = [p.requires_grad for p in adapted.parameters()]
    scores = make(name)(adapted, rollouts)
    assert torch.allclose(scores, expected, rtol=1e-3) == (name in WITHOUT_THE_MODEL)
    assert adapted.training
    assert [p.requires_grad for p in adapted.parameters()] == wanted
    assert all(p.grad is None for p in adapted.parameters())
