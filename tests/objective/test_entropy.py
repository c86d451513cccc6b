"""Controllers of an entropy term against closed forms, a bandit of known entropy, and any split of a step."""

from __future__ import annotations

import math
import re

import pytest
import torch

from oar_lightning.objective.entropy import AdaptiveEntropy, EntropyControl, StepEntropy, Unadapted, difficulty_weights
from oar_lightning.objective.loss import Denominators, LossInputs, policy_loss

BOTH = [AdaptiveEntropy, StepEntropy]


def after(control: EntropyControl, entropies: list[float]) -> EntropyControl:
    for step, entropy in enumerate(entropies):
        control.observe(step, {"entropy": entropy})
    return control


@pytest.mark.parametrize("steps", [1, 7, 40, 400])
@pytest.mark.parametrize("entropy", [0.0, 0.5, 0.8, 3.0])
def test_constant_entropies_have_the_closed_form_of_the_proportional_controller(entropy: float, steps: int) -> None:
    """The first step fixes H_0 = 2 and pulls by -rate (1 - tau), the others by rate (tau - H / H_0)."""
    control = AdaptiveEntropy(target_ratio=0.4, rate=0.005, coef_max=0.05, coef_start=0.02)
    after(control, [2.0] + [entropy] * steps)
    expected = min(max(0.02 - 0.005 * 0.6 + steps * 0.005 * (0.4 - entropy / 2.0), 0.0), 0.05)
    assert control.coefficient == pytest.approx(expected, abs=1e-12)
    assert control.target == pytest.approx(0.8)


def test_the_default_begins_without_a_term_and_aims_at_what_the_first_step_had() -> None:
    control = AdaptiveEntropy()
    assert (control.coefficient, control.target) == (0.0, None)
    assert control.metrics == {"entropy_coef": 0.0}
    after(control, [1.5])
    assert control.coefficient == 0.0
    assert control.metrics["entropy_target"] == pytest.approx(0.6)


def test_the_step_controller_by_hand() -> None:
    """It counts up at the target or below and down above it, and gives its count only after a step at or below."""
    control = StepEntropy(target=0.2, delta=0.25, coef_max=0.6)
    seen = []
    for entropy in (0.1, 0.2, 0.05, 0.3, 0.1, 0.5, 0.5, 0.5):
        after(control, [entropy])
        seen.append(control.coefficient)
    assert seen == pytest.approx([0.25, 0.5, 0.6, 0.0, 0.6, 0.0, 0.0, 0.0])
    assert after(control, [0.1]).coefficient == pytest.approx(0.25), "it had fallen to 0, and not below"
    assert control.metrics["entropy_target"] == 0.2
    assert StepEntropy(coef_start=0.3).coefficient == 0.0, "nothing is known before the first step"


@pytest.mark.parametrize("kind", BOTH)
@pytest.mark.parametrize("metrics", [{}, {"entropy": math.nan}, {"entropy": math.inf}])
def test_a_step_without_a_finite_entropy_changes_nothing(kind: type[EntropyControl], metrics: dict[str, float]) -> None:
    for control in (kind(), after(kind(), [0.1, 0.05])):
        before = control.state_dict()
        control.observe(3, metrics)
        assert control.state_dict() == before


def test_a_policy_without_entropy_at_the_start_is_left_alone() -> None:
    assert after(AdaptiveEntropy(coef_start=0.01), [0.0, 0.0, 1.0]).coefficient == 0.01


@pytest.mark.parametrize("kind", BOTH)
def test_a_saved_controller_goes_on_bit_for_bit(kind: type[EntropyControl]) -> None:
    entropies = [0.31, 0.17, 0.05, 0.1, 0.02, 0.013]
    whole, first = after(kind(), entropies), after(kind(), entropies[:3])
    second = after(kind(), [0.9])
    second.load_state_dict(first.state_dict())
    assert after(second, entropies[3:]).state_dict() == whole.state_dict()
    second.load_state_dict({})
    assert second.state_dict() == kind().state_dict(), "an empty state is the beginning"


def test_the_forecast_tells_what_is_read() -> None:
    assert "has all 64 completions of an optimizer step in the update" in StepEntropy().forecast(64)


def test_no_control_has_no_term_and_refuses_a_state() -> None:
    control = after(Unadapted(), [0.1, 0.2])
    mask = torch.ones(2, 3, dtype=torch.bool)
    assert control.weights(mask, Denominators.of(mask, 3), None) is None
    assert (control.state_dict(), control.metrics, control.forecast(8)) == ({}, {}, "")
    with pytest.raises(ValueError, match="entropy=none keeps no state, and the checkpoint holds some: coef"):
        control.load_state_dict({"coef": 1.0})


@pytest.mark.parametrize(
    ("settings", "kind", "message"),
    [
        ({"target_ratio": 0.0}, AdaptiveEntropy, "entropy.target_ratio must be finite and > 0, got 0.0"),
        ({"coef_start": 0.1}, AdaptiveEntropy, "entropy.coef_start=0.1 is more than entropy.coef_max=0.05; lower it"),
        ({"coef_min": 0.1}, StepEntropy, "entropy.coef_min=0.1 is more than entropy.coef_start=0.0; lower it"),
        ({"target": -1.0}, StepEntropy, "entropy.target is an entropy in nats and must be finite and > 0, got -1.0"),
    ],
)
def test_settings_that_cannot_work_are_refused(settings: dict[str, float], kind: type[EntropyControl], message: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        kind(**settings)


NAN = math.nan


@pytest.mark.parametrize(
    ("accuracy", "expected"),
    [
        ([1, 1, 0, 0, 1, 0], [0, 0, 2, 2, 1, 1]),
        ([1, 1, 1, 1], [1, 1, 1, 1]),
        ([0, 0, 0, 0], [1, 1, 1, 1]),
        ([NAN, NAN, 1, 0, NAN, 0], [1, 1, 2 / 3, 2 / 3, 4 / 3, 4 / 3]),
        ([NAN, NAN], [1, 1]),
    ],
)
def test_difficulty_by_hand(accuracy: list[float], expected: list[float]) -> None:
    """Groups of two; NaN is an accuracy that does not apply."""
    assert difficulty_weights(torch.tensor(accuracy).float(), 2).tolist() == pytest.approx(expected)


def test_difficulties_have_mean_1() -> None:
    accuracy = torch.rand(64, generator=torch.Generator().manual_seed(0)).round()
    weights = difficulty_weights(accuracy, 4)
    assert float(weights.mean()) == pytest.approx(1, abs=1e-6)
    assert (weights.view(-1, 4) == weights.view(-1, 4)[:, :1]).all()
    solved = accuracy.view(-1, 4).mean(1)
    assert torch.equal(weights[::4].argsort(stable=True), (-solved).argsort(stable=True))


def random_step(rows: int = 6, columns: int = 9) -> dict[str, torch.Tensor]:
    g = torch.Generator().manual_seed(1)
    mask = torch.rand(rows, columns, generator=g) < 0.6
    mask[0], mask[1] = False, True
    logprobs = -torch.rand(rows, columns, generator=g, dtype=torch.float64)
    entropy, advantages = torch.rand(2, rows, columns, generator=g, dtype=torch.float64)
    return {"logprobs": logprobs, "old_logprobs": logprobs.clone(), "advantages": advantages, "mask": mask, "entropy": entropy}


def term(control: EntropyControl, step: dict[str, torch.Tensor], over: Denominators, difficulty: torch.Tensor) -> torch.Tensor:
    """What the control adds to the loss."""
    weights = control.weights(step["mask"], over, difficulty)
    with_term = policy_loss(LossInputs(**step, denominators=over, entropy_weights=weights)).loss
    return with_term - policy_loss(LossInputs(**step, denominators=over)).loss


@pytest.mark.parametrize("kind", BOTH)
def test_the_term_is_the_formulas_and_is_exact_for_any_split(kind: type[EntropyControl]) -> None:
    step, control = random_step(), after(kind(), [0.15, 0.03, 0.02])
    difficulty = torch.tensor([0.0, 0.5, 0.5, 2.0, 1.0, 2.0], dtype=torch.float64)
    over = Denominators.of(step["mask"], 9)
    lam = control.coefficient
    assert lam > 0
    sums, lengths = (step["entropy"] * step["mask"]).sum(1), step["mask"].sum(1)
    if kind is AdaptiveEntropy:
        expected = -lam * float((difficulty * sums / lengths.clamp(min=1)).sum()) / 6
    else:
        expected = -lam * float((difficulty * sums).sum()) / int(lengths.sum())
    whole = float(term(control, step, over, difficulty))
    assert whole == pytest.approx(expected, rel=1e-6)  # weights are float32
    for cut in (1, 2, 5):
        parts = [slice(0, cut), slice(cut, None)]
        shares = [term(control, {k: v[part] for k, v in step.items()}, over, difficulty[part]) for part in parts]
        assert float(sum(shares)) == pytest.approx(whole, abs=1e-13)
    dirty = step | {"entropy": step["entropy"].masked_fill(~step["mask"], NAN).requires_grad_()}
    found = term(control, dirty, over, difficulty)
    (gradient,) = torch.autograd.grad(found, dirty["entropy"])
    assert float(found.detach()) == pytest.approx(whole, abs=1e-13)
    assert gradient.isfinite().all()
    assert not gradient[~step["mask"]].any()


def test_entropy_weights_without_entropies_are_an_error() -> None:
    step = random_step() | {"entropy": None}
    with pytest.raises(ValueError, match="entropy_weights need the policy's entropies"):
        policy_loss(LossInputs(**step, denominators=Denominators.of(step["mask"], 9), entropy_weights=step["logprobs"]))


ARMS = torch.linspace(0, 0.1, 10, dtype=torch.float64)
"""Rewards of a bandit. The best policy at lam is softmax(rewards / lam), whose entropy is known."""


def entropy_of(logits: torch.Tensor) -> torch.Tensor:
    p = logits.softmax(-1)
    return -(p * logits.log_softmax(-1)).sum()


def train_bandit(control: EntropyControl, steps: int, lr: float = 60.0) -> list[float]:
    """Exact gradient steps on the expected reward with the control's term, from the uniform policy; entropies of the steps."""
    logits = torch.zeros(10, dtype=torch.float64, requires_grad=True)
    found = []
    for step in range(steps):
        entropy = entropy_of(logits)
        loss = -(logits.softmax(-1) * ARMS).sum() - control.coefficient * entropy
        (gradient,) = torch.autograd.grad(loss, logits)
        logits = (logits - lr * gradient).detach().requires_grad_()
        found.append(float(entropy.detach()))
        control.observe(step, {"entropy": found[-1]})
    return found


def test_the_entropy_of_a_bandit_is_held_at_the_target() -> None:
    """Without the term it falls far below; with it lam ends where the best policy's entropy is the target's."""
    control, target = AdaptiveEntropy(), 0.4 * math.log(10)
    assert train_bandit(Unadapted(), 300)[-1] < 0.5 * target
    entropies = train_bandit(control, 400)
    assert control.target == pytest.approx(target)
    assert all(0.9 * target <= entropy <= 1.1 * target for entropy in entropies[-100:])
    low, high = 1e-3, 1.0
    for _ in range(50):  # the lam whose best policy has the target's entropy
        middle = (low + high) / 2
        low, high = (middle, high) if float(entropy_of(ARMS / middle)) < target else (low, middle)
    assert control.coefficient == pytest.approx(low, rel=0.1)


def test_the_step_controller_holds_the_entropy_of_a_bandit_too() -> None:
    entropies = train_bandit(StepEntropy(target=0.9, delta=0.001), 400)
    assert sum(entropies[-200:]) / 200 == pytest.approx(0.9, rel=0.1)
