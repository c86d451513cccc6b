"""RLCSD's token advantages against the published function, and its two means."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from support.toy import rollouts_of

from oar_lightning.common.config_check import ConfigError
from oar_lightning.credit.gates import ContrastGate
from oar_lightning.credit.gates import contrast as contrast_file
from oar_lightning.credit.scorers.hindsight import Contrast, Rlsd
from oar_lightning.objective.loss import LossConfig
from oar_lightning.training.method import Method, check_credit


@pytest.mark.parametrize(
    ("advantage", "score", "expected"),
    [(0.7, 0.01, 0.931059), (0.7, -0.5, 0.2), (-0.4, 0.5, 0), (-0.4, -0.5, -0.9), (0.3, -0.5, 0), (0.7, 0.0005, 0.7)],
)
def test_token_advantages_of_the_published_function(advantage: float, score: float, expected: float) -> None:
    rollouts = rollouts_of([{"before": [1], "tail": [2]}], advantages=torch.tensor([advantage], dtype=torch.float64))
    found = ContrastGate()(torch.tensor([[0.0, score]], dtype=torch.float64), rollouts)
    assert float(found.advantages[0, 1]) == pytest.approx(expected, abs=5e-7)


SEQUENCES = [{"before": [1, 2], "tail": [3, 4, 5, 6]}, {"before": [1], "tail": [7, 8]}, {"before": [1], "tail": [9]}]
SCORES = torch.zeros(3, 6, dtype=torch.float64)
SCORES[0, 3], SCORES[1, 2], SCORES[2, 2] = 1.0, -1.0, 5.0


def given(*advantages: float):
    return rollouts_of(SEQUENCES, advantages=torch.tensor(advantages or (1.0, -1.0, 0.0), dtype=torch.float64))


def test_a_mean_over_all_tokens_is_the_two_means() -> None:
    """Tokens 4 and 6 are changed; a completion of advantage 0 counts among the others."""
    rollouts = given()
    for eta in (1.0, 0.25):
        found = ContrastGate(eta=eta)(SCORES, rollouts).advantages
        assert float(found.sum() / rollouts.response_mask.sum()) == pytest.approx((3 - 1 + 0) / 5 + eta * (1.5 - 1.5) / 2)
        assert found[0, [2, 3]].tolist() == pytest.approx([7 / 5, 1.5 * eta * 7 / 2])
        assert not found[2].any()


def test_without_a_changed_token_it_is_the_group_advantage_bit_for_bit() -> None:
    rollouts = given()
    for gate, scores in ((ContrastGate(), SCORES * 1e-4), (ContrastGate(region="reasoning"), SCORES)):
        expected = rollouts.advantages[:, None] * rollouts.response_mask
        assert torch.equal(gate(scores, rollouts).advantages, expected)
    broken = SCORES.clone()
    broken[0, 4] = torch.nan
    found = ContrastGate()(broken, given(1.0, 0.0, 0.0)).advantages
    assert torch.equal(found[0], torch.tensor([0, 0, 1.0, 1, 1, 1], dtype=torch.float64))


def test_ranks_share_the_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    rollouts = given()
    whole = ContrastGate()(SCORES, rollouts).advantages
    monkeypatch.setattr(contrast_file, "all_gather", lambda own: [[4, 1], [3, 1]])
    for rows in ([0], [1, 2]):
        of_rows = {
            field.name: value[rows]
            for field in dataclasses.fields(rollouts)
            if isinstance(value := getattr(rollouts, field.name), torch.Tensor)
        }
        part = dataclasses.replace(rollouts, **of_rows)
        assert torch.equal(ContrastGate()(SCORES[rows], part).advantages, whole[rows])


def test_its_means_need_a_loss_over_tokens() -> None:
    with pytest.raises(ConfigError, match=r"loss\.reduction=grpo over others; use loss\.reduction=dapo"):
        check_credit(Method(Contrast(), ContrastGate()))
    check_credit(Method(Contrast(), ContrastGate(), loss=LossConfig(reduction="dapo")))
    with pytest.raises(ConfigError, match="gives importance"):
        check_credit(Method(Rlsd(), ContrastGate(), loss=LossConfig(reduction="dapo")))


def test_metrics() -> None:
    rollouts = given()
    credit = ContrastGate()(SCORES, rollouts)
    total, count = ContrastGate().metrics(credit, rollouts.response_mask)["credit/changed_frac"]
    assert total / count == pytest.approx((1 / 4 + 1 / 2 + 1) / 3)


def test_a_gate_that_would_change_no_token_is_refused() -> None:
    with pytest.raises(ValueError, match=r"gate\.least=0\.02 must be less than gate\.strength=0\.02"):
        ContrastGate(strength=0.02)
