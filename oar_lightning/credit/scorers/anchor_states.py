"""What a token changes in the success of the group's completions that have come to the same state."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from oar_lightning.common.ranges import Rule, checked
from oar_lightning.credit.component import group_advantages_of
from oar_lightning.credit.located import Locate, located
from oar_lightning.credit.scorers.base import Scorer
from oar_lightning.types import Rollouts


@checked(
    "scorer",
    Rule(
        lambda form, absolute: form == "difference" or not absolute,
        "scorer.absolute=true is the size of a difference of values; set scorer.form=difference",
    ),
)
class AnchorStates(Scorer):
    """Scores of the tokens that lead from one state to the next, by the values of the states that a group's completions share.

    A completion's state is the sequence of anchors that it has written so far, token by token, whatever stands between them, in
    the same token or not. V(s) is the mean reward of the group's completions that pass through s. The token that leads from
    s to s' has

    - `difference`: V(s') - V(s). A completion's scores sum to V(its last state) - the group's mean reward (ours).
    - `return`: R - V(s), the step advantage of GiGPO (arXiv 2505.10978) without division by the deviation; there the states
      are those of an environment.

    A state that one completion alone has reached has nothing to compare: with `difference` what follows has 0. Other tokens
    have 0, too. Nothing is sampled, and the model does not run. `shared_frac`: fraction of anchor tokens before which at least
    two completions were in the same state.

    Args:
        anchors: finds the tokens that make the state, as numbers and operators do in arithmetic.
        form: one of the two, for gate=signed.
        absolute: importance in place of it, for gates that read no sign: how far the token moved the value towards the
            completion's own outcome, max(0, sign(A) (V(s') - V(s))).
    """

    covers = "response"
    reads_groups = True

    def __init__(self, anchors: Locate, form: Literal["difference", "return"] = "difference", absolute: bool = False) -> None:
        self.signed = not absolute
        self.anchors = anchors
        self.form = form

    def __call__(self, model: Any, rollouts: Rollouts) -> Float[Tensor, "B S"]:
        """Raises ValueError for rollouts without texts."""
        mask, paths, _ = located(rollouts, self.anchors, "scorer.anchors")
        rewards = rollouts.rewards.double().tolist()
        scores: list[float] = []
        shared = 0
        for start in range(0, len(paths), rollouts.group_size):
            group = slice(start, start + rollouts.group_size)
            for reward, visits in zip(rewards[group], visited_states(paths[group], rewards[group]), strict=True):
                shared += sum(state.visitors > 1 for state in visits[:-1])
                ends = [state.value if self.form == "difference" else reward for state in visits[1:]]
                known = not math.isnan(reward)
                scores += [end - state.value if known else 0.0 for state, end in zip(visits[:-1], ends, strict=True)]
        self.metrics = {"shared_frac": shared / max(1, len(scores))}
        out = torch.zeros(mask.shape, device=mask.device).masked_scatter(mask, torch.tensor(scores, device=mask.device))
        return out if self.signed else (out * group_advantages_of(rollouts)[:, None].sign()).clamp(min=0)


class State(NamedTuple):
    """Mean reward and number of the completions that pass through a state, without those whose reward is not known (NaN)."""

    value: float
    visitors: int


def visited_states(paths: Sequence[Sequence[str]], rewards: Sequence[float]) -> list[list[State]]:
    """The states of each path, one more than it has texts of tokens. Two paths are in one state where they have begun with the
    same texts."""
    numbers: dict[tuple[int, str], int] = {}  # (state, text) -> the state that follows; 0 is the beginning
    visits = []
    for path in paths:
        visits.append([0])
        for text in path:
            visits[-1].append(numbers.setdefault((visits[-1][-1], text), len(numbers) + 1))
    totals, counts = [0.0] * (len(numbers) + 1), [0] * (len(numbers) + 1)
    for states, reward in zip(visits, rewards, strict=True):
        for state in states if not math.isnan(reward) else ():
            totals[state] += reward
            counts[state] += 1
    found = [State(total / max(1, count), count) for total, count in zip(totals, counts, strict=True)]
    return [[found[state] for state in states] for states in visits]
