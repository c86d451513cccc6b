"""Tries a scorer on two made-up completions, so that a mistake in it ends a run before anything long."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import torch

from oar_lightning.common.config_check import ConfigError
from oar_lightning.common.randomness import global_rng_kept
from oar_lightning.credit.scorers import Capo, FunctionScorer, Oracle, Scorer, checked_scores
from oar_lightning.inspection.recorded import RecordedCompletion, encode_recorded, to_generation
from oar_lightning.policy.language_model import evaluating
from oar_lightning.policy.pretrained import Policy
from oar_lightning.rollout import RolloutStage
from oar_lightning.types import MathProblem, Rollouts

REASONING = ("One step at a time: 1 + 1 = 2.", "The numbers are given, and 3 - 2 = 1 is left.\nSo this is it.")


def needs_trial(scorer: Scorer) -> bool:
    """Whether a scorer is a user's, reads a task's texts, or asks a judge. Tests cover the others of the package."""
    return isinstance(scorer, FunctionScorer | Oracle | Capo) or not type(scorer).__module__.startswith("oar_lightning.")


def try_scorer(scorer: Scorer, policy: Policy, stage: RolloutStage, problem: MathProblem) -> None:
    """Score two completions of a problem.

    Raises:
        ConfigError: where the scorer raises, or returns something that training cannot use.
    """
    key = f"scorer._target_={_source(scorer)}"
    rollouts = _made_up(policy, stage, problem)
    known = dict(scorer.metrics), scorer.totals
    try:
        with global_rng_kept(), evaluating(policy.model):
            checked_scores(scorer(policy.model, rollouts), rollouts, rollouts.reasoning_mask, scorer.name)
    except Exception as error:  # a scorer may be anyone's code
        what = str(error) if isinstance(error, ValueError) else f"raised {type(error).__name__}: {error}; correct it"
        raise ConfigError(f"{key}, tried on two made-up completions: {what}") from error
    finally:
        scorer.metrics, scorer.totals = known
    if any(parameter.grad is not None for parameter in policy.model.parameters()):
        raise ConfigError(
            f"{key}, tried on two made-up completions: it leaves gradients in the policy; use torch.autograd.grad"
        )


def _source(scorer: Scorer) -> str:
    """Where the scorer's code is."""
    own: Any = scorer.function if isinstance(scorer, FunctionScorer) else type(scorer)
    own = own.func if isinstance(own, functools.partial) else own
    own = own if hasattr(own, "__qualname__") else type(own)
    return f"{own.__module__}.{own.__qualname__}"


def _made_up(policy: Policy, stage: RolloutStage, problem: MathProblem) -> Rollouts:
    form = stage.answer_format
    answer = f"\\boxed{{{problem.answer}}}" if form.boxed else f"{form.phrases[0].lstrip('^')} {problem.answer}"
    recorded = [RecordedCompletion("made up", problem, f"{reasoning}\n{answer}") for reasoning in REASONING]
    device = policy.model.get_input_embeddings().weight.device
    generation = to_generation(encode_recorded(recorded, policy.tokenizer, stage.prompt), stage.pad_token_id, device)
    rollouts = stage.judge(generation, [problem] * len(recorded), group_size=len(recorded), step=0)
    return dataclasses.replace(rollouts, advantages=torch.tensor([1.0, -1.0], device=device))
