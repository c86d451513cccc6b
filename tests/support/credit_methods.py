"""Methods that have to survive a resume and another number of ranks: sampling, signed, stateful, of groups, with a budget."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import torch
from support.fixtures import tiny_policy
from torch import Tensor

from oar_lightning.credit.gates import DirectGate, Gate, SignedGate
from oar_lightning.credit.judges import Judge, Solution, Verdict
from oar_lightning.credit.judges.budget import Budget
from oar_lightning.credit.scorers import Capo, IStar, MonteCarlo, Prime, Scorer, Spro
from oar_lightning.credit.scorers.forward_free import Shear, Ucas
from oar_lightning.credit.scorers.forward_free.base import PredictionScorer
from oar_lightning.credit.scorers.hindsight import Contrast, Rlsd
from oar_lightning.credit.segments import FixedLength
from oar_lightning.credit.teachers import LaggedPolicy
from oar_lightning.distributed.ranks import all_gather
from oar_lightning.policy.pretrained import Policy
from oar_lightning.types import Rollouts


class Surprise(PredictionScorer):
    """Entropies over their mean of all steps so far, on all ranks."""

    reads_all_rows = True

    def __init__(self) -> None:
        super().__init__()
        self.seen = torch.zeros(2, dtype=torch.float64)
        """Sum and number of the entropies."""

    def __call__(self, model: Any, rollouts: Rollouts) -> Tensor:
        entropy = self.predictions(model, rollouts).entropy
        own = [float(entropy.double().sum()), float(rollouts.response_mask.sum())]
        self.seen += torch.tensor(all_gather(own), dtype=torch.float64).sum(0)
        return entropy / (self.seen[0] / self.seen[1]).to(entropy)

    def state_dict(self) -> dict[str, Any]:
        return {"seen": self.seen.clone()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.seen = state["seen"].clone()


class Paid(Judge):
    """Calls steps with an even number of characters wrong, as long as its budget lasts: two steps of a run."""

    def __init__(self) -> None:
        super().__init__()
        self.budget = Budget(calls=16, tokens=None)

    def __call__(self, solutions: Sequence[Solution]) -> list[Verdict]:
        self.budget.share_out()
        return [
            tuple(float((end - start) % 2 == 0) for start, end in one.steps) if self.budget.take_call() else None
            for one in solutions
        ]

    def state_dict(self) -> dict[str, Any]:
        return self.budget.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.budget.load_state_dict(state)


def decided_policy(seed: int = 0) -> Policy:
    """The tiny policy with larger weights: z-scores of an undecided one's certainties are made of rounding."""
    policy = tiny_policy(seed)
    with torch.no_grad():
        for parameter in policy.model.parameters():
            if parameter.ndim > 1:
                parameter.mul_(8)
    return policy


def reference_of(scorer: Scorer, policy: Policy) -> Any:
    """The policy at its start, frozen, for a scorer that reads it."""
    return copy.deepcopy(policy.model).requires_grad_(False) if scorer.needs_reference else None


def credit_methods() -> dict[str, tuple[Scorer, Gate]]:
    """Name -> scorer and gate, new ones at each call."""
    return {
        "capo": (Capo(Paid(), FixedLength(4)), SignedGate()),
        "contrast": (Contrast(teacher=LaggedPolicy(2), weights=True), DirectGate(strength=0.5, low=0.8, high=1.2)),
        "istar": (IStar(FixedLength(4), lr=1e-3), SignedGate()),
        "monte_carlo": (MonteCarlo(FixedLength(4), samples=2), SignedGate()),
        "prime": (Prime(lr=1e-3, lowest=0.0, highest=1.0), SignedGate()),
        "rlsd": (Rlsd(teacher=LaggedPolicy(2)), DirectGate(strength=0.5, low=0.8, high=1.2)),
        "shear": (Shear(), DirectGate()),
        "spro": (Spro(), SignedGate("add")),
        "ucas": (Ucas(), SignedGate()),
        "surprise": (Surprise(), DirectGate(high=4.0)),
    }
