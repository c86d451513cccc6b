"""SERL's mask: between GRPO and RLSD, and alone."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from hydra.utils import instantiate
from support.toy import gpt2, rollouts_of, tools

from oar_lightning.common.paths import conf_dir
from oar_lightning.credit.assign import assign_credit
from oar_lightning.credit.gates import DirectGate
from oar_lightning.credit.scorers import Uniform
from oar_lightning.credit.scorers.hindsight import ActionMask, Rlsd, Serl
from oar_lightning.data.actions import TextPattern
from oar_lightning.types import MathProblem, Rollouts

GATE = DirectGate(strength=0.5, low=0.8, high=1.2)


def given() -> Rollouts:
    sequences = [{"before": [3, 4], "reasoning": [8, 9, 10], "answer": [13]}, {"before": [3, 4], "reasoning": [11, 12]}]
    return rollouts_of(
        sequences,
        problems=(MathProblem("a", "2"),) * 2,
        completions=("1+ab", "b2"),
        token_spans=(((0, 1), (1, 2), (2, 3), (3, 4)), ((0, 1), (1, 2))),
        advantages=torch.tensor([1.0, -1.0], dtype=torch.float64),
    )


def credit_with(actions: TextPattern | None) -> torch.Tensor:
    def reprompt(rollouts: Rollouts, questions: list[str]) -> Rollouts:
        ids = rollouts.token_ids.clone()
        ids[:, 0] = 33
        return dataclasses.replace(rollouts, token_ids=ids)

    scorer = Rlsd() if actions is None else Serl(actions, "answer")
    scorer.use(tools(reprompt=reprompt))
    return assign_credit(gpt2(), given(), scorer, GATE).advantages


def test_no_action_is_grpo_bit_for_bit_and_all_of_the_text_is_rlsd() -> None:
    grpo = assign_credit(None, given(), Uniform(), DirectGate(strength=0)).advantages
    everywhere = credit_with(None)
    assert torch.equal(credit_with(TextPattern("x")), grpo)
    assert torch.equal(credit_with(TextPattern("(?s).")), everywhere)
    some = credit_with(TextPattern())
    actions = torch.zeros_like(some, dtype=torch.bool)
    actions[0, 2:4] = actions[1, 3] = True
    assert torch.equal(some, torch.where(actions, everywhere, grpo))
    assert (everywhere != grpo)[given().response_mask].all()


@pytest.mark.parametrize("bonus", [0.1, -1.0])
def test_the_mask_alone(bonus: float) -> None:
    rollouts = given()
    scores = ActionMask(TextPattern(), bonus)(None, rollouts)
    assert scores[0].tolist() == pytest.approx([0, 0, 1 + bonus, 1 + bonus, 1, 1])
    assert scores[1].tolist() == pytest.approx([0, 0, 1, 1 + bonus, 0, 0])


def test_what_is_refused() -> None:
    with pytest.raises(ValueError, match=r"scorer\.bonus .* must be finite and >= -1, got -2"):
        ActionMask(TextPattern(), -2.0)
    with pytest.raises(ValueError, match=r"scorer\.actions reads the text of completions"):
        ActionMask(TextPattern())(None, dataclasses.replace(given(), token_spans=()))


@pytest.mark.slow
def test_its_experiments() -> None:
    """The pattern of the files is the default one, and texts have tokens that it finds and others."""
    from hydra import compose, initialize_config_dir

    with initialize_config_dir(str(conf_dir()), version_base=None):
        serl, mask = (compose("config", [f"+experiment={name}"]) for name in ("serl", "action_mask"))
    scorer, control = instantiate(serl.scorer), instantiate(mask.scorer)
    assert (type(scorer), scorer.hint, instantiate(serl.gate)) == (Serl, "feedback", GATE)
    assert type(control) is ActionMask
    assert scorer.actions.pattern == control.actions.pattern == TextPattern().pattern
    assert instantiate(mask.gate) == DirectGate()
