"""Tries a scorer and a gate on two made-up completions, so that a mistake in them ends a run before anything long."""

from __future__ import annotations

import dataclasses
import functools
import logging
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from oar_lightning.common.config_check import ConfigError
from oar_lightning.common.randomness import generator, global_rng_kept
from oar_lightning.credit.component import region_mask
from oar_lightning.credit.gates import Gate, checked_credit
from oar_lightning.credit.scorers import Capo, FunctionScorer, Oracle, Scorer, checked_scores
from oar_lightning.credit.scorers.base import Wrapper
from oar_lightning.inspection.recorded import RecordedCompletion, encode_recorded, to_generation
from oar_lightning.policy.language_model import evaluating
from oar_lightning.policy.pretrained import Policy
from oar_lightning.rollout import RolloutStage
from oar_lightning.types import MathProblem, Rollouts

log = logging.getLogger(__name__)

REASONING = ("One step at a time: 1 + 1 = 2.", "The numbers are given, and 3 - 2 = 1 is left.\nSo this is it.")

ROUNDING = 1e-4
"""Of the largest score: so far below 0 one may be by rounding."""

TRIED = "tried on two made-up completions"


def _is_own(part: Scorer | Gate) -> bool:
    """Whether it is a user's."""
    return isinstance(part, FunctionScorer) or not type(part).__module__.startswith("oar_lightning.")


def _tried(scorer: Scorer) -> tuple[Scorer, str]:
    """What is within the package's scorers that change another's scores, and its key."""
    key = "scorer"
    while isinstance(scorer, Wrapper) and not _is_own(scorer):
        scorer, key = scorer.inner, f"{key}.inner"
    return scorer, key


def _scorer_needs_trial(scorer: Scorer) -> bool:
    tried, _ = _tried(scorer)
    return isinstance(tried, Oracle | Capo) or _is_own(tried)


def needs_trial(scorer: Scorer, gate: Gate) -> bool:
    """Whether one of them is a user's, reads a task's texts, or asks a judge. Tests cover the others of the package."""
    return _scorer_needs_trial(scorer) or _is_own(gate)


def try_credit(scorer: Scorer, gate: Gate, policy: Policy, stage: RolloutStage, problem: MathProblem) -> None:
    """Score two completions of a problem, and put made-up scores of them through the gate, where `needs_trial` says so.

    Raises:
        ConfigError: where one of them raises, or returns something that training cannot use.
    """
    rollouts = _made_up(policy, stage, problem)
    if _scorer_needs_trial(scorer):
        _try_scorer(scorer, policy, rollouts)
    if _is_own(gate):
        _try_gate(gate, rollouts, scorer.signed)


def _try_scorer(scorer: Scorer, policy: Policy, rollouts: Rollouts) -> None:
    scorer, place = _tried(scorer)
    own: Any = scorer.function if isinstance(scorer, FunctionScorer) else type(scorer)
    key = f"{place}._target_={_source(own)}"
    region = region_mask(rollouts, scorer.covers)
    try:
        with global_rng_kept(), evaluating(policy.model), scorer.looked_at():
            found = scorer(policy.model, rollouts)
            scores = checked_scores(found, rollouts, region, scorer.name)
    except Exception as error:  # a scorer may be anyone's code
        raise _refusal(key, error) from error
    finally:
        scorer.measure_anew()
    if any(parameter.grad is not None for parameter in policy.model.parameters()):
        raise ConfigError(f"{key}, {TRIED}: it leaves gradients in the policy; use torch.autograd.grad")
    if not _is_own(scorer):
        return
    if not scorer.signed and bool((scores < -ROUNDING * scores.abs().max()).any()):
        raise ConfigError(
            f"{key}, {TRIED}: a score is {float(scores.min()):g}, and importance is >= 0; take its size, or make it a class "
            "with signed = True and choose gate=signed"
        )
    if not any(row[mask].isfinite().any() for row, mask in zip(scores, region, strict=True)):
        log.warning(
            "%s, %s: no score is a finite number, so that both count as not scored; a run in which all completions do is GRPO, "
            "with credit/invalid_frac at 1",
            key,
            TRIED,
        )
        return
    if scorer.covers == "reasoning" and bool(found.nan_to_num(0.0).masked_fill(region, 0.0).any()):
        log.warning(
            "%s, %s: scores outside of rollouts.reasoning_mask are not used; one of the answer, too, says covers = 'response'",
            key,
            TRIED,
        )
    if not any(row[mask].unique().numel() > 1 for row, mask in zip(scores, rollouts.reasoning_mask, strict=True)):
        log.warning(
            "%s, %s: all tokens before the answer get the same score; a run in which they always do is GRPO, with "
            "credit/uniform_frac at 1",
            key,
            TRIED,
        )


def _try_gate(gate: Gate, rollouts: Rollouts, signed: bool) -> None:
    """Made-up scores, then the same with a completion that could not be scored, whose scores are NaN."""
    key = f"gate._target_={_source(type(gate))}"
    mask = region_mask(rollouts, gate.region)
    for scores in _made_up_scores(mask, signed):
        try:
            with global_rng_kept(), gate.looked_at():
                checked_credit(gate(scores, rollouts), rollouts, type(gate).__name__)
        except Exception as error:  # a gate may be anyone's code
            unscored = ", the second of which could not be scored (its scores are NaN)" if scores.isnan().any() else ""
            raise _refusal(key, error, unscored) from error


def _made_up_scores(mask: Tensor, signed: bool) -> tuple[Float[Tensor, "B S"], Float[Tensor, "B S"]]:
    draws = torch.rand(mask.shape, generator=generator("credit trial")).to(mask.device)
    scores = (2 * draws - 1 if signed else draws).masked_fill(~mask, 0.0)
    unscored = scores.clone()
    unscored[1, mask[1]] = torch.nan
    return scores, unscored


def _refusal(key: str, error: Exception, where: str = "") -> ConfigError:
    what = str(error) if isinstance(error, ValueError) else f"raised {type(error).__name__}: {error}; correct it"
    return ConfigError(f"{key}, {TRIED}{where}: {what}")


def _source(own: Any) -> str:
    """Where a class's or a function's code is."""
    own = own.func if isinstance(own, functools.partial) else own
    own = own if hasattr(own, "__qualname__") else type(own)
    return f"{own.__module__}.{own.__qualname__}"


def _made_up(policy: Policy, stage: RolloutStage, problem: MathProblem) -> Rollouts:
    form, stated = stage.answer_format, problem.answer or "1"  # recorded completions may have no gold answer
    answer = f"\\boxed{{{stated}}}" if form.boxed else f"{form.phrases[0].lstrip('^')} {stated}"
    recorded = [RecordedCompletion("made up", problem, f"{reasoning}\n{answer}") for reasoning in REASONING]
    device = policy.model.get_input_embeddings().weight.device
    generation = to_generation(encode_recorded(recorded, policy.tokenizer, stage.prompt), stage.pad_token_id, device)
    rollouts = stage.judge(generation, [problem] * len(recorded), group_size=len(recorded), step=0)
    return dataclasses.replace(rollouts, advantages=torch.tensor([1.0, -1.0], device=device))
