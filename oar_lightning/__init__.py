"""Token-level credit assignment for RL with verifiable rewards, on Lightning, Hydra and MLflow.

The names of `__all__` are what a program or a notebook needs (docs/python.md). Each is imported where it is first used: the
import of this package alone takes no time.
"""

# ruff: noqa: F401

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # the same names as below, for type checkers
    from oar_lightning.answers.reward import Accuracy, Format, Rewards, SoftOverlong
    from oar_lightning.answers.span import AnswerFormat
    from oar_lightning.credit.gates import BilevelGate, ClipGate, ContrastGate, DirectGate, Gate, SelectGate, SignedGate
    from oar_lightning.credit.scorers import (
        Entropy,
        OarG,
        OarP,
        OarPApproximate,
        OarPSteps,
        Oracle,
        Random,
        Scorer,
        TurningPoint,
        Uniform,
    )
    from oar_lightning.data.chain.task import ChainProblems, ChainTask
    from oar_lightning.data.files import FileProblems
    from oar_lightning.data.graph.task import GraphProblems, GraphTask
    from oar_lightning.data.hub import HubProblems
    from oar_lightning.data.listed import ListedProblems
    from oar_lightning.data.prompts import ChatPrompt, PlainPrompt
    from oar_lightning.evaluation.evaluate import EvaluationConfig
    from oar_lightning.inspection.score import heatmap, score
    from oar_lightning.objective.advantage import AdvantageConfig
    from oar_lightning.objective.loss import LossConfig
    from oar_lightning.policy.fresh import FreshPolicy
    from oar_lightning.policy.pretrained import LoraSpec, Policy, PretrainedPolicy, export_policy
    from oar_lightning.rollout import SamplingConfig
    from oar_lightning.training.method import Method
    from oar_lightning.training.schedule import Schedule
    from oar_lightning.training.settings import Settings
    from oar_lightning.training.slots import UpdatePlan
    from oar_lightning.training.supervised import SupervisedConfig
    from oar_lightning.training.train import train
    from oar_lightning.types import MathProblem, Rollouts

__version__ = "0.1.0"

_PUBLIC = {
    "answers.reward": ("Accuracy", "Format", "Rewards", "SoftOverlong"),
    "answers.span": ("AnswerFormat",),
    "credit.gates": ("BilevelGate", "ClipGate", "ContrastGate", "DirectGate", "Gate", "SelectGate", "SignedGate"),
    "credit.scorers": (
        *("Entropy", "OarG", "OarP", "OarPApproximate", "OarPSteps", "Oracle", "Random", "Scorer", "TurningPoint"),
        "Uniform",
    ),
    "data.chain.task": ("ChainProblems", "ChainTask"),
    "data.files": ("FileProblems",),
    "data.graph.task": ("GraphProblems", "GraphTask"),
    "data.hub": ("HubProblems",),
    "data.listed": ("ListedProblems",),
    "data.prompts": ("ChatPrompt", "PlainPrompt"),
    "evaluation.evaluate": ("EvaluationConfig",),
    "inspection.score": ("heatmap", "score"),
    "objective.advantage": ("AdvantageConfig",),
    "objective.loss": ("LossConfig",),
    "policy.fresh": ("FreshPolicy",),
    "policy.pretrained": ("LoraSpec", "Policy", "PretrainedPolicy", "export_policy"),
    "rollout": ("SamplingConfig",),
    "training.method": ("Method",),
    "training.schedule": ("Schedule",),
    "training.settings": ("Settings",),
    "training.slots": ("UpdatePlan",),
    "training.supervised": ("SupervisedConfig",),
    "training.train": ("train",),
    "types": ("MathProblem", "Rollouts"),
}
"""Module -> its names that the package has too."""

_MODULE_OF = {name: module for module, names in _PUBLIC.items() for name in names}

__all__ = [*_MODULE_OF]


def __getattr__(name: str) -> Any:
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_MODULE_OF[name]}"), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
