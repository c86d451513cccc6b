"""Policy losses against TRL's numbers and gradients, the published OAR loss, finite differences, and any split of a step."""

from __future__ import annotations

import dataclasses
import itertools

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.toy import floats, golden

from oar_lightning.objective.loss import (
    Denominators,
    LossConfig,
    LossInputs,
    importance_ratio,
    k3,
    policy_loss,
    reduce_tokens,
    sampler_correction,
)

GOLDEN = golden("grpo_losses")
INPUTS = GOLDEN["inputs"]
MASK = floats(INPUTS["completion_mask"]).bool()
REDUCTIONS = ("grpo", "dapo", "dr_grpo")


def label(case) -> str:
    return "-".join(f"{k}={v}" for k, v in case.items() if k not in ("loss", "grad", "metrics"))


def config_of(case) -> LossConfig:
    """TRL's settings under our names."""
    cispo = case["loss_type"] == "cispo"
    clip = (
        {"ratio_cap": case["epsilon_high"]} if cispo else {"clip_low": case["epsilon_low"], "clip_high": case["epsilon_high"]}
    )
    return LossConfig(
        surrogate="cispo" if cispo else "clip",
        reduction="dapo" if cispo else case["loss_type"],
        ratio=case["importance_sampling_level"],
        ratio_max=case["delta"],
        kl_coef=case["beta"],
        kl_bias_correction=case["use_bias_correction_kl"],
        entropy_coef=case["entropy_coef"],
        **clip,
    )


@pytest.mark.parametrize("case", GOLDEN["cases"], ids=label)
def test_golden_losses_and_gradients(case):
    expected, case = case, GOLDEN["defaults"] | case
    logprobs = floats(INPUTS["logps"]).requires_grad_()
    old = floats(INPUTS["old_logps"]) if case["old"] == "given" else logprobs.detach()
    advantages = floats(INPUTS["advantages_BT"])
    if case["advantages"] == "B":
        advantages = floats(INPUTS["advantages_B"])[:, None].expand_as(logprobs)
    inputs = LossInputs(
        logprobs,
        old,
        advantages,
        MASK,
        Denominators.of(MASK, case["max_completion_length"]),
        ref_logprobs=floats(INPUTS["ref_logps"]),
        entropy=floats(INPUTS["entropies"]),
    )
    out = policy_loss(inputs, config_of(case))
    (gradient,) = torch.autograd.grad(out.loss, logprobs)
    assert float(out.loss.detach()) == pytest.approx(expected["loss"], abs=1e-12)
    torch.testing.assert_close(gradient[MASK], floats(expected["grad"]), rtol=0, atol=1e-12)
    assert not gradient[~MASK].any()

    metrics = {name.replace("cispo_clip_ratio", "clip_ratio/cispo_mean"): v for name, v in expected["metrics"].items()}
    if case["use_bias_correction_kl"]:
        metrics.pop("kl", None)  # TRL then logs k3 times the ratio, ours stays k3
    for name, value in metrics.items():
        total, count = out.metrics[name]
        assert count == float(MASK.sum())
        assert total / count == pytest.approx(value, abs=1e-6), name


def test_golden_cases_cover_the_grid():
    cases = [GOLDEN["defaults"] | c for c in GOLDEN["cases"]]
    assert len(cases) == 231
    assert {c["loss_type"] for c in cases} == {"grpo", "bnpo", "dr_grpo", "dapo", "cispo"}
    assert {(c["importance_sampling_level"], c["delta"], c["beta"], c["advantages"]) for c in cases} == set(
        itertools.product(("token", "sequence"), (None, 1.5), (0.0, 0.04), ("B", "BT"))
    )
    assert not MASK.any(1).all(), "one completion is empty"


@pytest.mark.parametrize(
    "case", golden("oar_loss")["cases"], ids=lambda c: f"old={c['uses_old_logps']}-credit={c['credit_assignment']}"
)
def test_golden_oar_loss(case):
    """Mean over completions of the clipped loss with A_t = A w_t, as the authors' script computes it."""
    mask = floats(case["action_mask"]).bool()
    logprobs = floats(case["logps"]).requires_grad_()
    old = floats(case["old_logps"]) if case["uses_old_logps"] else logprobs.detach()
    weights = floats(case["token_weights_full"]) if case["credit_assignment"] else torch.ones_like(logprobs)
    config = LossConfig(reduction="grpo", clip_low=case["clip_eps"], clip_high=case["clip_eps"])
    advantages = floats(case["advantages"])[:, None] * weights
    loss = policy_loss(LossInputs(logprobs, old, advantages, mask, Denominators.of(mask, 99)), config).loss
    (gradient,) = torch.autograd.grad(loss, logprobs)
    assert float(loss.detach()) == pytest.approx(case["loss_f64"], abs=1e-12)
    torch.testing.assert_close(gradient[mask], floats(case["grad"]), rtol=0, atol=1e-12)


# ---------------------------------------------------------------------------------------------------------- a random step


def random_step(rows=7, columns=11, seed=0):
    """Log-probabilities some of whose ratios clip on either side, with a left-padded mask, gaps and an empty row."""
    rng = torch.Generator().manual_seed(seed)

    def normal(scale):
        return scale * torch.randn(rows, columns, generator=rng, dtype=torch.float64)

    old = -normal(1).abs() - 0.1
    step = {
        "logprobs": old + normal(0.3),
        "old_logprobs": old,
        "advantages": normal(1),
        "mask": torch.rand(rows, columns, generator=rng) < torch.rand(rows, 1, generator=rng) + 0.2,
        "ref_logprobs": old + normal(0.5),
        "entropy": normal(1).abs(),
    }
    step["mask"][2] = False
    return step


CONFIGS = {
    f"{surrogate}-{ratio}-{reduction}-{extra}": LossConfig(surrogate=surrogate, ratio=ratio, reduction=reduction, **settings)
    for surrogate in ("clip", "cispo")
    for ratio in ("token", "sequence", "sequence_token")
    for reduction in REDUCTIONS
    for extra, settings in {
        "plain": {},
        "all": {
            "ratio_max": 1.3 if surrogate == "clip" else None,
            "ratio_cap": 1.1,
            "clip_low": 0.1,
            "clip_high": 0.25,
            "kl_coef": 0.3,
            "kl_bias_correction": True,
            "entropy_coef": 0.2,
        },
    }.items()
}


def loss_and_gradients(step, over, config):
    logprobs, entropy = (step[name].clone().requires_grad_() for name in ("logprobs", "entropy"))
    out = policy_loss(LossInputs(**(step | {"logprobs": logprobs, "entropy": entropy}), denominators=over), config)
    gradients = torch.autograd.grad(out.loss, (logprobs, entropy), allow_unused=True)
    return float(out.loss.detach()), [torch.zeros_like(logprobs) if g is None else g for g in gradients], out.metrics


@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
@settings(max_examples=8, deadline=None)
@given(owner=st.lists(st.integers(0, 3), min_size=7, max_size=7), seed=st.integers(0, 99))
def test_micro_batches_add_up_to_the_step(config, owner, seed):
    """Any assignment of the rows to micro-batches, each with its own order and number of columns."""
    check_split(random_step(seed=seed), config, owner)


def check_split(step, config, owner):
    over = Denominators.of(step["mask"], 13)
    loss, gradients, metrics = loss_and_gradients(step, over, config)
    total, added, sums = 0.0, [torch.zeros_like(g) for g in gradients], {}
    for part in set(owner):
        rows = torch.tensor([i for i, o in enumerate(owner) if o == part]).flip(0)
        used = step["mask"][rows].any(0).nonzero().flatten().tolist() or [0]
        columns = slice(used[0], used[-1] + 1)
        share, grads, shares = loss_and_gradients({k: v[rows, columns] for k, v in step.items()}, over, config)
        total += share
        for whole, piece in zip(added, grads, strict=True):
            whole[rows, columns] += piece
        for name, (value, count) in shares.items():
            old = sums.get(name, (0.0, 0.0))
            sums[name] = (old[0] + value, old[1] + count)
    assert total == pytest.approx(loss, abs=1e-12)
    for actual, expected in zip(added, gradients, strict=True):
        torch.testing.assert_close(actual, expected, rtol=0, atol=1e-13)
    assert sums.keys() == metrics.keys()
    for name, (value, count) in metrics.items():
        assert sums[name] == (pytest.approx(value, abs=1e-12), count)


def test_bnpo_is_the_mean_of_the_means_of_micro_batches():
    """It depends on the split; over the whole step it is dapo."""
    step = random_step()
    over = Denominators.of(step["mask"], 13)
    whole = loss_and_gradients(step, over, LossConfig(reduction="bnpo"))[0]
    parts = [{k: v[rows] for k, v in step.items()} for rows in (slice(0, 2), slice(2, 7))]
    assert whole == pytest.approx(loss_and_gradients(step, over, LossConfig(reduction="dapo"))[0], abs=1e-14)
    over = over._replace(passes=2.0)
    both = sum(loss_and_gradients(p, over, LossConfig(reduction="bnpo"))[0] for p in parts)
    means = [loss_and_gradients(p, Denominators.of(p["mask"], 13), LossConfig(reduction="dapo"))[0] for p in parts]
    assert both == pytest.approx(sum(means) / 2, abs=1e-14)
    assert abs(both - whole) > 1e-3


@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
def test_padding_and_garbage_outside_the_mask_do_not_matter(config):
    step = random_step()
    over = Denominators.of(step["mask"], 13)
    loss, gradients, _ = loss_and_gradients(step, over, config)
    for garbage in (float("nan"), float("inf"), -float("inf"), 1e9):
        dirty = {k: v if k == "mask" else v.masked_fill(~step["mask"], garbage) for k, v in step.items()}
        wide = {k: torch.nn.functional.pad(v, (3, 2), value=0 if k == "mask" else garbage) for k, v in dirty.items()}
        actual, grads, _ = loss_and_gradients(wide, over, config)
        assert actual == pytest.approx(loss, abs=1e-13)
        for g, expected in zip(grads, gradients, strict=True):
            torch.testing.assert_close(g[:, 3:-2], expected, rtol=0, atol=1e-13)
            assert not g[:, :3].any()


@pytest.mark.parametrize("ratio", ["token", "sequence"])
@pytest.mark.parametrize("reduction", [*REDUCTIONS, "bnpo"])
@pytest.mark.parametrize("extras", [{}, {"ratio_max": 1.3, "kl_coef": 0.3, "kl_bias_correction": True, "entropy_coef": 0.2}])
def test_gradient_is_the_finite_difference(ratio, reduction, extras):
    step = random_step(rows=4, columns=5)
    over = Denominators.of(step["mask"], 9)
    config = LossConfig(ratio=ratio, reduction=reduction, **extras)

    def value(logprobs, entropy):
        return policy_loss(LossInputs(**(step | {"logprobs": logprobs, "entropy": entropy}), denominators=over), config).loss

    _, gradients, _ = loss_and_gradients(step, over, config)
    point = [step["logprobs"], step["entropy"]]
    for which, index in itertools.product(range(2), step["mask"].nonzero().tolist()):
        offset = torch.zeros_like(point[0])
        offset[tuple(index)] = 1e-6
        up, down = list(point), list(point)
        up[which], down[which] = point[which] + offset, point[which] - offset
        numeric = float(value(*up) - value(*down)) / 2e-6
        assert float(gradients[which][tuple(index)]) == pytest.approx(numeric, abs=1e-8)


def test_cispo_gradient_is_the_capped_ratio_times_advantage():
    step = random_step()
    over = Denominators.of(step["mask"], 13)
    _, (gradient, _), _ = loss_and_gradients(step, over, LossConfig(surrogate="cispo", ratio_cap=1.1, reduction="dapo"))
    ratio = (step["logprobs"] - step["old_logprobs"]).exp()
    assert (ratio[step["mask"]] > 1.1).any()
    expected = -ratio.clamp(max=1.1) * step["advantages"] * step["mask"] / step["mask"].sum()
    torch.testing.assert_close(gradient, expected, rtol=0, atol=1e-14)


@pytest.mark.parametrize("reduction", ["grpo"])
def test_gspo_token_has_gspos_gradient_for_uniform_advantages(reduction):
    step = random_step()
    step["advantages"] = step["advantages"][:, :1].expand(-1, 11)
    over = Denominators.of(step["mask"], 13)
    sequence = loss_and_gradients(step, over, LossConfig(ratio="sequence", reduction=reduction))
    token = loss_and_gradients(step, over, LossConfig(ratio="sequence_token", reduction=reduction))
    assert token[0] == pytest.approx(sequence[0], abs=1e-14)
    torch.testing.assert_close(token[1][0], sequence[1][0], rtol=0, atol=1e-14)
    assert token[1][0].abs().max() > 1e-3


def test_gspo_token_keeps_credit_with_its_token():
    """With advantages that vary, the sequence ratio smears credit over the completion and the token form does not."""
    step = random_step()
    step["advantages"] = torch.zeros_like(step["advantages"])
    step["logprobs"] = step["old_logprobs"] + 0.01
    row, column = step["mask"].nonzero()[0].tolist()
    step["advantages"][row, column] = 1.0
    over = Denominators.of(step["mask"], 13)
    token = loss_and_gradients(step, over, LossConfig(ratio="sequence_token"))[1][0]
    sequence = loss_and_gradients(step, over, LossConfig(ratio="sequence"))[1][0]
    assert token.nonzero().tolist() == [[row, column]]
    assert len(sequence.nonzero()) == int(step["mask"][row].sum()) > 1


def test_the_ratio_of_a_completion_does_not_depend_on_what_a_gate_leaves_out_of_the_loss():
    step = random_step()
    whole = step["mask"]
    kept = whole & (torch.arange(whole.shape[1]) % 2 == 0)
    config = LossConfig(ratio="sequence_token", clip_low=0.9, clip_high=1e6)
    over = Denominators.of(kept, 13)
    logprobs = step["logprobs"].clone().requires_grad_(True)
    inputs = LossInputs(logprobs, step["old_logprobs"], step["advantages"], kept, over, ratio_mask=whole)
    (gradient,) = torch.autograd.grad(policy_loss(inputs, config).loss, logprobs)
    log_ratio = (step["logprobs"] - step["old_logprobs"]).masked_fill(~whole, 0.0)
    ratio = (log_ratio.sum(1, keepdim=True) / whole.sum(1, keepdim=True).clamp(min=1)).exp()
    weights = kept.double() / (kept.sum(1, keepdim=True).clamp(min=1) * len(kept))
    torch.testing.assert_close(gradient, -ratio * step["advantages"] * weights, rtol=0, atol=1e-12)


def test_importance_ratios_by_hand():
    log_ratio = torch.tensor([[0.1, 0.3, 9.0], [9.0, -0.2, 9.0]], dtype=torch.float64)
    mask = torch.tensor([[True, True, False], [False, True, False]])
    old = torch.zeros_like(log_ratio)
    assert importance_ratio(log_ratio, old, mask, "token")[mask].log().tolist() == pytest.approx([0.1, 0.3, -0.2])
    for level in ("sequence", "sequence_token"):
        assert importance_ratio(log_ratio, old, mask, level)[mask].log().tolist() == pytest.approx([0.2, 0.2, -0.2])


@pytest.mark.parametrize(
    ("settings", "later_reference", "ignores_zero_advantage"),
    [
        ({}, False, True),
        ({"reduction": "bnpo"}, False, False),
        ({"entropy_coef": 0.1}, False, False),
        ({"kl_from": 0.5}, False, True),
        ({"kl_coef": 0.1}, False, False),
        ({"kl_coef": 0.1, "kl_from": 0.5}, True, False),
    ],
)
def test_what_a_loss_says_of_itself(settings, later_reference, ignores_zero_advantage):
    config = LossConfig(**settings)
    assert config.later_reference is later_reference
    assert config.ignores_zero_advantage is ignores_zero_advantage


def test_k3_is_unbiased_and_not_negative():
    p, q = (torch.randn(2, 50, dtype=torch.float64) * 1.5).log_softmax(-1)
    kl = float((p.exp() * (p - q)).sum())
    assert float((p.exp() * k3(p[None], q[None])[0]).sum()) == pytest.approx(kl, abs=1e-12)
    assert (k3(p[None], q[None]) >= 0).all()
    assert k3(p[None], p[None]).abs().max() == 0


def test_reductions_by_hand():
    values = torch.tensor([[1.0, 2.0, 99.0], [6.0, 99.0, 99.0], [99.0, 99.0, 99.0]], dtype=torch.float64)
    mask = torch.tensor([[True, True, False], [True, False, False], [False, False, False]])
    over = Denominators.of(mask, 10)
    assert over == (3.0, 3.0, 10.0, 1.0)
    expected = {"grpo": (1.5 + 6) / 3, "dapo": 9 / 3, "dr_grpo": 9 / 30, "bnpo": 9 / 3}
    assert {r: float(reduce_tokens(values, mask, over, r)) for r in expected} == pytest.approx(expected)
    doubled = Denominators(6.0, 12.0, 10.0)
    expected = {"grpo": 7.5 / 6, "dapo": 9 / 12, "dr_grpo": 9 / 60, "bnpo": 9 / 3}
    assert {r: float(reduce_tokens(values, mask, doubled, r)) for r in expected} == pytest.approx(expected)


@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
def test_credit_weights_never_touch_the_kl_and_entropy_terms(config):
    """Loss(advantages) - loss(0) is the policy term alone: linear in the advantages' scale, without KL or entropy."""
    step = random_step()
    over = Denominators.of(step["mask"], 13)
    zero = loss_and_gradients(step | {"advantages": torch.zeros_like(step["advantages"])}, over, config)
    one, two = (loss_and_gradients(step | {"advantages": k * step["advantages"]}, over, config) for k in (1, 2))
    assert two[0] - zero[0] == pytest.approx(2 * (one[0] - zero[0]), abs=1e-12)
    torch.testing.assert_close(two[1][1], zero[1][1], rtol=0, atol=0)
    assert config.ignores_zero_advantage == (not zero[1][0].any() and not zero[1][1].any())


def test_clip_metrics_count_the_tokens_whose_clip_acts():
    ratio = torch.tensor([[0.5, 0.5, 1.0, 1.5, 1.5, 1.5]], dtype=torch.float64)
    advantages = torch.tensor([[1.0, -1.0, 1.0, 1.0, -1.0, 1.0]], dtype=torch.float64)
    mask = torch.tensor([[True, True, True, True, True, False]])
    out = policy_loss(LossInputs(ratio.log(), torch.zeros_like(ratio), advantages, mask, Denominators.of(mask, 6)))
    assert out.metrics == {
        "clip_ratio/low_mean": (1.0, 5.0),
        "clip_ratio/high_mean": (1.0, 5.0),
        "clip_ratio/region_mean": (2.0, 5.0),
    }
    config = LossConfig(surrogate="cispo", ratio_cap=1.2)
    out = policy_loss(LossInputs(ratio.log(), torch.zeros_like(ratio), advantages, mask, Denominators.of(mask, 6)), config)
    assert out.metrics == {"clip_ratio/cispo_mean": (1.0, 5.0)}


# ------------------------------------------------------------------------------------- the mismatch of engine and policy


def mismatched_step(seed=0, scale=0.6, **size):
    """A random step whose sampler is off by enough that some ratios pass the cap."""
    step = random_step(seed=seed, **size)
    noise = torch.randn(step["mask"].shape, generator=torch.Generator().manual_seed(seed + 1000), dtype=torch.float64)
    return step | {"sampler_logprobs": step["old_logprobs"] + scale * noise}


def loss_in_numpy(step, config, max_length):
    """The corrected loss token by token from its definition, for token ratios: an independent transcription."""
    x = {name: tensor.numpy() for name, tensor in step.items()}
    rows, columns = x["mask"].shape
    total, tokens = 0.0, int(x["mask"].sum())
    for i in range(rows):
        values, entropies = [], []
        for t in range(columns):
            if not x["mask"][i, t]:
                continue
            new, old, advantage = x["logprobs"][i, t], x["old_logprobs"][i, t], x["advantages"][i, t]
            ratio = np.exp(new - old)
            if config.surrogate == "cispo":
                value = -min(ratio, config.ratio_cap) * advantage * new
            else:
                upper = ratio if config.ratio_max is None else min(ratio, config.ratio_max)
                value = -min(upper * advantage, np.clip(ratio, 1 - config.clip_low, 1 + config.clip_high) * advantage)
            if config.sampler_ratio_cap is not None:
                value *= min(np.exp(old - x["sampler_logprobs"][i, t]), config.sampler_ratio_cap)
            delta = x["ref_logprobs"][i, t] - new
            kl = np.exp(delta) - delta - 1
            values.append(value + config.kl_coef * kl * (ratio if config.kl_bias_correction else 1))
            entropies.append(x["entropy"][i, t])
        weight = {"grpo": 1 / max(len(values), 1) / rows, "dapo": 1 / tokens, "dr_grpo": 1 / (rows * max_length)}
        total += weight[config.reduction] * sum(values) - config.entropy_coef * sum(entropies) / tokens
    return total


@settings(max_examples=60)
@given(
    seed=st.integers(0, 10_000),
    cap=st.one_of(st.none(), st.floats(1, 4), st.just(float("inf"))),
    surrogate=st.sampled_from(["clip", "cispo"]),
    reduction=st.sampled_from(REDUCTIONS),
    ratio_max=st.sampled_from([None, 1.3]),
    extra=st.sampled_from([{}, {"kl_coef": 0.3, "kl_bias_correction": True, "entropy_coef": 0.2}]),
)
def test_the_corrected_loss_is_its_numpy_transcription(seed, cap, surrogate, reduction, ratio_max, extra):
    step = mismatched_step(seed)
    caps = {"ratio_cap": 1.1, "sampler_ratio_cap": cap, "ratio_max": ratio_max if surrogate == "clip" else None}
    config = LossConfig(surrogate=surrogate, reduction=reduction, **caps, **extra)
    loss = policy_loss(LossInputs(**step, denominators=Denominators.of(step["mask"], 13)), config).loss
    assert float(loss) == pytest.approx(loss_in_numpy(step, config, 13), abs=1e-12)


@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
@settings(max_examples=4, deadline=None)
@given(owner=st.lists(st.integers(0, 3), min_size=7, max_size=7), seed=st.integers(0, 99))
def test_corrected_micro_batches_add_up_to_the_step(config, owner, seed):
    check_split(mismatched_step(seed), config, owner)


@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
def test_garbage_outside_the_mask_does_not_reach_the_correction(config):
    step = mismatched_step()
    over = Denominators.of(step["mask"], 13)
    expected = loss_and_gradients(step, over, config)
    for garbage in (float("nan"), float("inf"), -float("inf"), -1e9):
        dirty = {k: v if k == "mask" else v.masked_fill(~step["mask"], garbage) for k, v in step.items()}
        actual = loss_and_gradients(dirty, over, config)
        assert actual[0] == pytest.approx(expected[0], abs=1e-13)
        assert actual[2] == expected[2]
        for gradient, wanted in zip(actual[1], expected[1], strict=True):
            torch.testing.assert_close(gradient, wanted, rtol=0, atol=1e-13)


@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
def test_an_engine_that_agrees_changes_nothing(config):
    """Bit for bit: with the same log-probabilities, without a cap, and without log-probabilities at all."""
    step = mismatched_step()
    over = Denominators.of(step["mask"], 13)
    plain = {name: value for name, value in step.items() if name != "sampler_logprobs"}
    expected = loss_and_gradients(plain, over, config)
    off = dataclasses.replace(config, sampler_ratio_cap=None)
    for given_step, used in ((plain | {"sampler_logprobs": step["old_logprobs"]}, config), (step, off), (plain, off)):
        actual = loss_and_gradients(given_step, over, used)
        assert actual[0] == expected[0]
        assert all(torch.equal(a, b) for a, b in zip(actual[1], expected[1], strict=True))
        assert {k: v for k, v in actual[2].items() if not k.startswith("sampler/")} == expected[2]
    assert not any(name.startswith("sampler/") for name in expected[2])
    assert abs(loss_and_gradients(step, over, config)[0] - expected[0]) > 1e-4


@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize("extras", [{}, {"ratio_max": 1.3, "kl_coef": 0.3, "kl_bias_correction": True}])
def test_corrected_gradient_is_the_finite_difference(reduction, extras):
    """With respect to the policy; neither the old log-probabilities' weight nor the sampler's get one."""
    step = mismatched_step(rows=4, columns=5)
    over, config = Denominators.of(step["mask"], 9), LossConfig(reduction=reduction, **extras)
    inputs = {name: step[name].clone().requires_grad_() for name in ("logprobs", "old_logprobs", "sampler_logprobs")}
    loss = policy_loss(LossInputs(**(step | inputs), denominators=over), config).loss
    gradient, _, sampler = torch.autograd.grad(loss, tuple(inputs.values()), allow_unused=True)
    assert sampler is None
    for index in step["mask"].nonzero().tolist():
        offset = torch.zeros_like(step["logprobs"])
        offset[tuple(index)] = 1e-6
        up, down = (
            policy_loss(LossInputs(**(step | {"logprobs": step["logprobs"] + sign * offset}), denominators=over), config).loss
            for sign in (1, -1)
        )
        assert float(gradient[tuple(index)]) == pytest.approx(float(up - down) / 2e-6, abs=1e-8)


def test_the_first_steps_gradient_is_that_of_the_policys_own_samples():
    """Without truncation, the expectation over the engine's distribution is the gradient of the policy's expected advantage."""
    rng = torch.Generator().manual_seed(3)
    logits, other, advantages = (torch.randn(9, generator=rng, dtype=torch.float64) for _ in range(3))
    logits.requires_grad_()
    log_p, log_q = logits.log_softmax(0), other.log_softmax(0)
    (expected,) = torch.autograd.grad(-(log_p.exp() * advantages).sum(), logits, retain_graph=True)
    mask = torch.ones(9, 1, dtype=torch.bool)
    config = LossConfig(reduction="dapo", sampler_ratio_cap=float("inf"))
    total = torch.zeros_like(logits)
    for token in range(9):
        columns = [x[token].view(1, 1) for x in (log_p, log_p.detach(), advantages)]
        over = Denominators(1.0, 1.0, 1.0)
        loss = policy_loss(LossInputs(*columns, mask[:1], over, sampler_logprobs=log_q[token].view(1, 1)), config).loss
        (gradient,) = torch.autograd.grad(loss, logits, retain_graph=True)
        total += log_q[token].exp() * gradient
    torch.testing.assert_close(total, expected, rtol=0, atol=1e-14)


def test_mismatch_metrics_by_hand():
    old = torch.tensor([[0.0, -1.0, -2.0, -1.0, -9.0]], dtype=torch.float64)
    sampler = torch.tensor([[0.0, -1.5, -1.0, -3.0, float("nan")]], dtype=torch.float64)
    mask = torch.tensor([[True, True, True, True, False]])
    ratio = np.exp([0.0, 0.5, -1.0, 2.0])
    weight, metrics = sampler_correction(old, sampler, mask, 2.0)
    assert weight[mask].tolist() == pytest.approx([1.0, ratio[1], ratio[2], 2.0])
    assert metrics == {
        "sampler/ratio_mean": (pytest.approx(ratio.sum()), 4.0),
        "sampler/capped_frac": (1.0, 4.0),
        "sampler/logprob_difference": (pytest.approx(3.5), 4.0),
    }
    weight, metrics = sampler_correction(old, sampler, mask, None)
    assert weight[mask].tolist() == [1.0] * 4
    assert metrics["sampler/capped_frac"] == (0.0, 4.0)


@pytest.mark.parametrize(
    ("config", "missing", "message"),
    [
        (LossConfig(kl_coef=0.1), "ref_logprobs", r"loss\.kl_coef=0\.1 needs ref_logprobs"),
        (LossConfig(entropy_coef=0.1), "entropy", r"loss\.entropy_coef=0\.1 needs the policy's entropies"),
    ],
)
def test_missing_inputs_are_errors(config, missing, message):
    step = random_step()
    with pytest.raises(ValueError, match=message):
        policy_loss(LossInputs(**(step | {missing: None}), denominators=Denominators.of(step["mask"], 13)), config)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"clip_low": -0.1}, r"loss\.clip_low .* got -0\.1"),
        ({"clip_low": 1.2}, r"loss\.clip_low"),
        ({"clip_high": -0.2}, r"loss\.clip_high .* got -0\.2"),
        ({"ratio_max": 1.0}, r"loss\.ratio_max .* got 1\.0"),
        ({"ratio_max": 1.05}, r"loss\.ratio_max=1\.05 must be greater than 1 \+ loss\.clip_high, and clip_high=0\.2"),
        ({"ratio_max": 2.0, "surrogate": "cispo"}, r"loss\.ratio_max=2\.0 caps .* set loss\.ratio_max=null"),
        ({"ratio_cap": 0.0}, r"loss\.ratio_cap .* got 0\.0"),
        ({"sampler_ratio_cap": 0.5}, r"loss\.sampler_ratio_cap .* must be >= 1, or null for no correction, got 0\.5"),
        ({"sampler_ratio_cap": float("nan")}, r"loss\.sampler_ratio_cap .* got nan"),
        ({"kl_coef": -1.0}, r"loss\.kl_coef .* got -1\.0"),
        ({"entropy_coef": float("-inf")}, r"loss\.entropy_coef .* got -inf"),
    ],
)
def test_config_errors_name_the_key(settings, message):
    with pytest.raises(ValueError, match=message):
        LossConfig(**settings)


@pytest.mark.parametrize("kl", [0.0, 0.1])
def test_tokens_may_have_bounds_and_a_kl_factor_of_their_own(kl):
    """Ratios of 2 and 1/2; the second and the last token have bounds of their own, of which either is another one."""
    nan = float("nan")
    logprobs = torch.tensor([[2.0, 2.0, 0.5, 0.5]], dtype=torch.float64).log()
    reference = logprobs - torch.tensor([[0.3, -0.2, 0.5, 1.0]], dtype=torch.float64)
    factor = torch.tensor([[1.0, 0.0, 1.0, 0.5]], dtype=torch.float64)
    mask = torch.ones(1, 4, dtype=torch.bool)
    inputs = LossInputs(
        logprobs,
        torch.zeros_like(logprobs),
        torch.tensor([[1.0, 1.0, -1.0, -1.0]], dtype=torch.float64),
        mask,
        Denominators.of(mask, 4),
        ref_logprobs=reference if kl else None,
        clip_low=torch.tensor([[nan, 0.3, nan, 0.3]], dtype=torch.float64),
        clip_high=torch.tensor([[nan, 0.6, nan, 0.6]], dtype=torch.float64),
        kl_factor=factor,
    )
    total = -1.25 - 1.6 + 0.9 + 0.7
    if kl:
        difference = (reference - logprobs).numpy()
        total += kl * float((factor.numpy() * (np.exp(difference) - difference - 1)).sum())
    config = LossConfig(reduction="dapo", clip_low=0.1, clip_high=0.25, kl_coef=kl)
    assert float(policy_loss(inputs, config).loss) == pytest.approx(total / 4, rel=1e-12)
