"""Estimates of credit against Monte-Carlo truth, on completions of a variant of the built-in task.

    python reports/total_effect/measure.py [--completions 32] [--samples 64] [--parts all|scores|page]

Truth: V after minus V before each free token (p < 0.98), V the success rate of sampled continuations, drawn twice. A token is
decisive where the mean of both differences is at least 0.3 in size. Writes results.json and the tables of README.md beside this file.
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import json
import os
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from oar_lightning.wiring.device import seed_everything, set_threads

os.environ.setdefault("TRANSFORMERS_SDPA_FORCE_GQA", "1")  # as `python -m oar_lightning` sets them
os.environ.setdefault("GOMP_SPINCOUNT", "20000")

import torch
from hydra import compose, initialize_config_dir
from hydra.utils import instantiate
from torch import Tensor

from oar_lightning.common.markdown import fill, markdown
from oar_lightning.common.paths import conf_dir
from oar_lightning.common.randomness import generator
from oar_lightning.credit.component import Reprompt, Tools
from oar_lightning.credit.freedom import FREE_BELOW
from oar_lightning.credit.predictions import predictions
from oar_lightning.credit.scorers import MonteCarlo, OarG, OarP, OarPApproximate, Scorer
from oar_lightning.credit.scorers.base import scorable_rows
from oar_lightning.credit.scorers.oar_g import rank_correlation
from oar_lightning.credit.scorers.total_effect import TotalEffect
from oar_lightning.credit.segments import Segmenter
from oar_lightning.data.stream import ProblemStream
from oar_lightning.policy.pretrained import PretrainedPolicy
from oar_lightning.policy.token_budget import TokenBudget
from oar_lightning.rollout import build_stage
from oar_lightning.rollout.continuations import Continuer, Reprompter
from oar_lightning.types import Rollouts
from oar_lightning.wiring.settings import build_settings

HERE = Path(__file__).parent
DECISIVE = 0.3
BUDGET = TokenBudget("measure", 4096)


@dataclass(frozen=True)
class AroundFree(Segmenter):
    """Cuts before and after each free token."""

    def cuts(self, model: Any, rollouts: Rollouts, mask: Tensor) -> Tensor:
        free = mask & (predictions(model, rollouts, mask, BUDGET).logprobs.exp() < FREE_BELOW)
        return free | (torch.nn.functional.pad(free[:, :-1], (1, 0)) & mask)


class Sampled(NamedTuple):
    model: Any
    rollouts: Rollouts
    halves: Tensor
    """[2 B S]: two estimates of the difference of values at each free token, 0 elsewhere."""


def sample(overrides: list[str], completions: int, samples: int) -> Sampled:
    with initialize_config_dir(str(conf_dir()), version_base="1.3"):
        cfg = compose("config", overrides)
    settings = build_settings(cfg)
    seed_everything(0)
    assert isinstance(settings.policy, PretrainedPolicy)
    loaded = settings.policy.load()
    stage = build_stage(loaded, instantiate(cfg.data.prompt, tokenizer=loaded.tokenizer), settings.answer, settings.rewards)
    assert settings.train is not None
    problems = ProblemStream(settings.train, 0).take(completions)
    rollouts = stage(loaded.model, problems, 1, settings.method.sampling, list(range(completions)), 0)
    rollouts = dataclasses.replace(rollouts.select(scorable_rows(rollouts)), prediction_states=None)
    rollouts = dataclasses.replace(rollouts, advantages=torch.ones_like(rollouts.rewards))
    return Sampled(loaded.model, rollouts, truth(loaded.model, rollouts, stage, settings.method.sampling, samples))


def truth(model: Any, rollouts: Rollouts, stage: Any, sampling: Any, samples: int) -> Tensor:
    """Two estimates of each free token's difference of values."""
    tools = Tools(Continuer(stage, sampling), Reprompter(stage))
    found = torch.zeros(2, *rollouts.token_ids.shape)
    for half, row in itertools.product(range(2), range(len(rollouts))):  # all at once would not fit into memory
        sys.stderr.write(f"\rtruth {half + 1} of 2, completion {row + 1} of {len(rollouts)}  ")
        rows = torch.tensor([row])
        scorer = MonteCarlo(AroundFree(), samples, most_segments=None, seed=half)
        scorer.use(tools)
        found[half, row, rollouts.columns(rows)] = scorer(model, rollouts.select(rows))[0]
    return found.masked_fill(~free_tokens(model, rollouts), 0.0)


def free_tokens(model: Any, rollouts: Rollouts) -> Tensor:
    found = predictions(model, rollouts, rollouts.reasoning_mask, BUDGET).logprobs
    return rollouts.reasoning_mask & (found.exp() < FREE_BELOW)
