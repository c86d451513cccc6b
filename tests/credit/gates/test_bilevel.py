"""The gate against golden weights, a numpy transcription, and its invariances."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.toy import golden, pad_rows, rollouts_of

from oar_lightning.credit.gates.bilevel import (
    BilevelGate,
    gate_weights,
    invalid_rows,
    masked_quantile,
    normalize_scores,
    preserve_mass,
)

VECTORS = golden("gating")["vectors"]
TAUS = sorted({case[1] for case in golden("gating")["cases"]})
BETAS = sorted({case[2] for case in golden("gating")["cases"]})


def numpy_gate(raw, tau, beta, renormalize=True, floor=0.1, mode="both", threshold="quantile"):
    """The published rule, one completion at a time; numpy's own quantile."""
    raw = np.asarray(raw, dtype=np.float64)
    if mode == "off":
        return np.ones_like(raw)
    x = np.log1p(raw)
    x = (x - x.min()) / ((x.max() - x.min()) or 1.0)
    theta = np.quantile(x, tau) if threshold == "quantile" else tau * (x.max() > 0)  # constant: no order, weight 1
    weights = np.empty_like(x)
    for j, value in enumerate(x):
        if value < theta:
            weights[j] = 1.0 if mode == "boost_only" else max(value / (theta + 1e-8), floor)
        else:
            weights[j] = 1.0 if mode == "suppress_only" else 1 + beta * (value - theta) / (1 - theta + 1e-8)
    if renormalize:
        weights = weights * len(raw) / (weights.sum() + 1e-8) if weights.sum() > 0 else np.ones_like(weights)
    return weights


def row(values, dtype=torch.float64):
    scores = torch.tensor([values], dtype=dtype)
    return scores, torch.ones_like(scores, dtype=torch.bool)


@pytest.mark.parametrize("name", VECTORS)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_golden_weights(name, dtype):
    cases = [case[1:] for case in golden("gating")["cases"] if case[0] == name]
    assert len(cases) == len(TAUS) * len(BETAS) * 2
    for tau, beta, renormalize, expected in cases:
        actual = gate_weights(*row(VECTORS[name], dtype), BilevelGate(tau=tau, beta=beta, renormalize=renormalize))
        assert actual.dtype == dtype
        tolerance = 1e-10 if dtype == torch.float64 else 2e-6
        error = actual[0].double().numpy() - expected
        assert np.abs(error).max() <= tolerance, f"{tau=} {beta=} {renormalize=}"


@pytest.mark.parametrize("case", golden("gating")["batch_chain"], ids=lambda c: f"tau={c['tau']},beta={c['beta']}")
def test_every_row_of_a_batch_has_the_configured_tau(case):
    """The published script carries one row's threshold value over as the next row's tau."""
    scores, mask = pad_rows([VECTORS[name] for name in case["vectors"]], fill=7.0)
    weights = gate_weights(scores, mask, BilevelGate(tau=case["tau"], beta=case["beta"], renormalize=case["sum_to_L"]))
    chained_differs = False
    for i, (own, chained) in enumerate(zip(case["weights_independent_f64"], case["weights_official_chained_f64"], strict=True)):
        np.testing.assert_allclose(weights[i, mask[i]].numpy(), own, rtol=0, atol=1e-10)
        chained_differs |= float(np.abs(weights[i, mask[i]].numpy() - chained).max()) > 1e-2
    assert chained_differs


@pytest.mark.parametrize("mode", ["both", "boost_only", "suppress_only", "off"])
@pytest.mark.parametrize("threshold", ["quantile", "absolute"])
@pytest.mark.parametrize("renormalize", [True, False])
@pytest.mark.parametrize("floor", [0.0, 0.1, 0.5, 1.0])
def test_numpy_transcription(mode, threshold, renormalize, floor):
    for name, raw in VECTORS.items():
        for tau in (0.0, 0.33, 0.4, 0.9, 1.0):
            gate = BilevelGate(tau=tau, beta=1.7, floor=floor, mode=mode, threshold=threshold, renormalize=renormalize)
            expected = numpy_gate(raw, tau, 1.7, renormalize, floor, mode, threshold)
            actual = gate_weights(*row(raw), gate)[0].numpy()
            np.testing.assert_allclose(actual, expected, rtol=0, atol=1e-10, err_msg=f"{name} {tau=}")


def test_hand_computed_levels():
    """Scores whose log1p is 0, 1/4, 1/2, 3/4, 1: tau = 1/2 puts the threshold on the middle one."""
    raw = [float(np.expm1(v)) for v in (0, 0.25, 0.5, 0.75, 1)]
    weights = {
        mode: gate_weights(*row(raw), BilevelGate(tau=0.5, beta=2.0, mode=mode, renormalize=False))[0].tolist()
        for mode in ("both", "boost_only", "suppress_only", "off")
    }
    assert weights["both"] == pytest.approx([0.1, 0.5, 1, 2, 3], abs=1e-7)
    assert weights["boost_only"] == pytest.approx([1, 1, 1, 2, 3], abs=1e-7)
    assert weights["suppress_only"] == pytest.approx([0.1, 0.5, 1, 1, 1], abs=1e-7)
    assert weights["off"] == [1, 1, 1, 1, 1]
    absolute = gate_weights(*row(raw), BilevelGate(tau=0.8, beta=2.0, threshold="absolute", renormalize=False))[0].tolist()
    assert absolute == pytest.approx([0.1, 0.3125, 0.625, 0.9375, 3], abs=1e-7)


def test_extreme_tau():
    raw = VECTORS["lognormal"]
    plain = {tau: gate_weights(*row(raw), BilevelGate(tau=tau, beta=2.0, renormalize=False))[0] for tau in (0.0, 1.0)}
    order = torch.tensor(raw).argsort()
    assert (plain[0.0][order[1:]] > 1).all()
    assert plain[0.0][order[0]] == 1
    assert (plain[1.0][order[:-1]] < 1).all()
    assert plain[1.0][order[-1]] == 1


@pytest.mark.parametrize("value", [float("nan"), -1.0, -1.5, float("inf"), -float("inf")])
def test_invalid_row_keeps_ones_and_is_counted(value):
    scores = torch.tensor([[0.2, 0.9, 0.1, 0.4], [0.2, value, 0.7, 0.1], [0.3, 0.1, 0.2, value]], dtype=torch.float64)
    mask = torch.tensor([[True] * 4, [True] * 4, [True, True, True, False]])
    weights = gate_weights(scores, mask)
    assert invalid_rows(scores, mask).tolist() == [False, True, False]
    assert weights[1].tolist() == [1, 1, 1, 1]
    np.testing.assert_allclose(weights[0].numpy(), numpy_gate(scores[0].tolist(), 0.4, 2.0), atol=1e-10)
    # an unusable value outside the mask is no concern of the row
    np.testing.assert_allclose(weights[2, :3].numpy(), numpy_gate([0.3, 0.1, 0.2], 0.4, 2.0), atol=1e-10)
    assert weights[2, 3] == 1


@pytest.mark.parametrize("raw", golden("gating")["invalid_inputs"].values(), ids=golden("gating")["invalid_inputs"])
def test_golden_invalid_inputs(raw):
    scores, mask = pad_rows([raw])
    assert invalid_rows(scores, mask).tolist() == [True]
    assert gate_weights(scores, mask).tolist() == [[1.0] * len(raw)]


@pytest.mark.parametrize("mode", ["both", "boost_only", "suppress_only"])
def test_nothing_to_compare_gives_ones(mode):
    scores = torch.tensor([[0.5, 0.5, 0.5], [0.9, 0.1, 0.3], [0.9, 0.1, 0.3]])
    mask = torch.tensor([[True, True, True], [False, True, False], [False, False, False]])
    weights = gate_weights(scores, mask, BilevelGate(mode=mode))
    torch.testing.assert_close(weights, torch.ones(3, 3), rtol=0, atol=1e-7)


def test_outside_the_mask_is_exactly_one():
    scores, mask = pad_rows([VECTORS["ties"], VECTORS["length_2"]], fill=123.0)
    weights = gate_weights(scores, mask)
    assert (weights[~mask] == 1).all()
    assert (weights[mask] != 1).any()


def test_padding_gaps_and_row_order_do_not_matter():
    rows = [VECTORS["lognormal"], VECTORS["uniform"], VECTORS["heavy_tail"], VECTORS["tiny_kl"]]
    scores, mask = pad_rows(rows)
    expected = [gate_weights(*row(r))[0] for r in rows]
    # scattered over random columns, with garbage between
    columns = [torch.randperm(50)[: len(r)].sort().values for r in rows]
    scattered, where = torch.rand(4, 50, dtype=torch.float64) * 9, torch.zeros(4, 50, dtype=torch.bool)
    for i, r in enumerate(rows):
        scattered[i, columns[i]] = torch.tensor(r, dtype=torch.float64)
        where[i, columns[i]] = True
    order = torch.tensor([2, 0, 3, 1])
    for s, m in ((scores, mask), (scattered, where)):
        weights, permuted = gate_weights(s, m), gate_weights(s[order], m[order])
        for i in range(4):
            torch.testing.assert_close(weights[i, m[i]], expected[i], rtol=0, atol=1e-12)
        torch.testing.assert_close(permuted, weights[order], rtol=0, atol=0)


@pytest.mark.parametrize(("advantages", "reshaped"), [("both", [0, 1]), ("positive", [0]), ("negative", [1])])
@pytest.mark.parametrize("threshold", ["quantile", "absolute"])
def test_completions_of_the_other_sign_keep_the_group_advantage(advantages, reshaped, threshold):
    rollouts = rollouts_of([{"before": [1, 2], "reasoning": [3, 4, 5, 6], "answer": [7]}] * 3)
    rollouts = dataclasses.replace(rollouts, advantages=torch.tensor([2.0, -2.0, 0.0], dtype=torch.float64))
    scores = torch.zeros(rollouts.token_ids.shape, dtype=torch.float64)
    scores[:, 2:6] = torch.tensor([0.0, 3.0, 0.5, 0.1], dtype=torch.float64)
    credit = BilevelGate(advantages=advantages, threshold=threshold)(scores, rollouts)
    by_hand = numpy_gate([0.0, 3.0, 0.5, 0.1], 0.4, 2.0, threshold=threshold)
    for i, group in enumerate((2.0, -2.0, 0.0)):
        expected = group * (by_hand if i in reshaped else np.ones(4))
        np.testing.assert_allclose(credit.advantages[i, 2:6].numpy(), expected, rtol=0, atol=1e-7)
        assert credit.advantages[i, 6] == group


@settings(max_examples=150, deadline=None)
@given(
    raw=st.lists(st.floats(0, 1e6), min_size=1, max_size=40),
    tau=st.floats(0, 1),
    beta=st.floats(0, 20),
    floor=st.just(0.0) | st.floats(0.1, 1),
    mode=st.sampled_from(["both", "boost_only", "suppress_only"]),
    threshold=st.sampled_from(["quantile", "absolute"]),
)
def test_mass_is_preserved_and_order_kept(raw, tau, beta, floor, mode, threshold):
    scores, mask = row(raw)
    gate = BilevelGate(tau=tau, beta=beta, floor=floor, mode=mode, threshold=threshold)
    weights = gate_weights(scores, mask, gate)[0]
    assert float(weights.sum()) == pytest.approx(len(raw), abs=1e-6)
    assert (weights >= 0).all()
    # a larger score never has the smaller weight (1e-7: the rule's own 1e-8 in the divisors)
    assert (weights[scores[0].argsort()].diff() >= -1e-7 * len(raw)).all()


@settings(max_examples=100, deadline=None)
@given(values=st.lists(st.floats(-100, 100), min_size=1, max_size=30), q=st.floats(0, 1))
def test_quantile_is_numpys(values, q):
    x, mask = row(values)
    padded_x = torch.cat([torch.full((1, 2), -1e9, dtype=torch.float64), x, torch.full((1, 3), 1e9, dtype=torch.float64)], 1)
    padded_mask = torch.cat([torch.zeros(1, 2, dtype=torch.bool), mask, torch.zeros(1, 3, dtype=torch.bool)], 1)
    assert float(masked_quantile(padded_x, padded_mask, q)) == pytest.approx(float(np.quantile(values, q)), abs=1e-9)


def test_pieces_on_empty_and_zero_rows():
    scores = torch.tensor([[3.0, 1.0], [0.0, 0.0]])
    none, full = torch.zeros(2, 2, dtype=torch.bool), torch.ones(2, 2, dtype=torch.bool)
    assert masked_quantile(scores, none, 0.4).tolist() == [[0], [0]]
    assert normalize_scores(scores, none).tolist() == [[0, 0], [0, 0]]
    assert normalize_scores(scores, full).tolist() == [[1, 0], [0, 0]]
    assert preserve_mass(scores, full).tolist() == [pytest.approx([1.5, 0.5]), [1, 1]]
    assert invalid_rows(torch.full((2, 2), torch.nan), none).tolist() == [False, False]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"tau": 1.4}, r"gate\.tau is a quantile .* must be in \[0, 1\], got 1\.4"),
        ({"tau": -0.1}, r"gate\.tau"),
        ({"tau": float("nan")}, r"gate\.tau"),
        ({"tau": 2, "threshold": "absolute"}, r"gate\.tau is .* a normalised score\) and must be in .* got 2"),
        ({"beta": -1.0}, r"gate\.beta .* got -1\.0"),
        ({"beta": float("inf")}, r"gate\.beta"),
        ({"beta": float("nan")}, r"gate\.beta"),
        ({"floor": 1.5}, r"gate\.floor .* got 1\.5"),
        ({"floor": -0.5}, r"gate\.floor"),
    ],
)
def test_config_errors_name_the_key(settings, message):
    with pytest.raises(ValueError, match=message):
        BilevelGate(**settings)


def test_scores_that_are_all_negative_say_nothing():
    scores = torch.tensor([[-0.5, -0.1, -0.2], [-1e-9, 0.0, 0.3], [-0.5, 7.0, -0.5]])
    mask = torch.tensor([[True] * 3, [True] * 3, [True, False, True]])
    assert invalid_rows(scores, mask).tolist() == [True, False, True]
    assert gate_weights(scores, mask)[0].tolist() == [1.0] * 3


def test_weights_of_scores_in_half_precision_keep_their_mass() -> None:
    scores = torch.rand(4, 50, generator=torch.Generator().manual_seed(0)).bfloat16()
    weights = gate_weights(scores, torch.ones(4, 50, dtype=torch.bool), BilevelGate())
    assert weights.dtype == torch.float32
    torch.testing.assert_close(weights.mean(1), torch.ones(4), rtol=0, atol=1e-6)
