"""OAR-G against golden gradients with given noise, finite differences, and its own noise."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.stats import spearmanr
from support.toy import floats, golden, gpt2, padded, rollouts_of

from oar_lightning.credit.scorers import OarG, ProbeSchedule
from oar_lightning.credit.scorers.base import place_rows
from oar_lightning.credit.scorers.oar_g import gradient_scores, of_mean, scale_to_one
from oar_lightning.credit.scorers.probes import PROBES
from oar_lightning.policy.token_budget import TokenBudget

GOLDEN = golden("oar_g")
# relative to the sequence's largest score. Batched, the golden model's float32 RMSNorm and rotary tables may round otherwise
ALONE = 1e-6
BATCHED = {("kl", 1e-3): 1e-3, ("kl", 1e-2): 1e-4, ("joint", 0.0): 2e-5, ("joint", 1e-3): 2e-5, ("joint", 1e-2): 2e-5}
SETTINGS = sorted({(c["probe"], c["noise_std"]) for c in GOLDEN["cases"]})


def scores_under(model, rollouts, probe, noise):
    """Scores [B S] for given noise [B S H]."""
    rows = torch.arange(len(rollouts))
    own = lambda rollouts, row, draw, size: noise[row, rollouts.reasoning_mask[row]]  # noqa: E731
    copies = [(row, 0) for row in rows.tolist()]
    scores, _ = gradient_scores(model, rollouts, probe, copies, own, TokenBudget("scorer.token_budget", 10**6))
    return place_rows([scores[row, 0] for row in rows.tolist()], rollouts.reasoning_mask, rows)


def placed_noise(rollouts, noise_std):
    noise = torch.zeros(*rollouts.token_ids.shape, 32, dtype=torch.float64)
    for i, unit in enumerate(GOLDEN["noise_unit"]):
        noise[i, rollouts.reasoning_mask[i]] = noise_std * floats(unit)
    return noise


def cases(probe, noise_std):
    found = {c["seq"]: c for c in GOLDEN["cases"] if (c["probe"], c["noise_std"]) == (probe, noise_std)}
    assert len(found) == len(GOLDEN["sequences"])
    return found


def test_golden_settings_are_there():
    assert SETTINGS == [
        ("answer_joint", 0.0),
        ("answer_joint", 0.001),
        ("answer_joint", 0.01),
        ("answer_mean", 0.001),
        ("answer_mean", 0.01),
        ("last", 0.001),
        ("last", 0.01),
    ]


@pytest.mark.parametrize(("probe", "noise_std"), SETTINGS)
def test_golden_scores(golden_model, probe, noise_std):
    for seq, case in cases(probe, noise_std).items():
        rollouts = rollouts_of([GOLDEN["sequences"][seq]])
        noise = torch.zeros(*rollouts.token_ids.shape, 32, dtype=torch.float64)
        noise[rollouts.reasoning_mask] = noise_std * floats(GOLDEN["noise_unit"][seq])
        scores = scores_under(golden_model, rollouts, PROBES[probe], noise)[rollouts.reasoning_mask]
        expected = floats(case["dot_f64"]).abs()
        assert float((scores - expected).abs().max() / expected.max()) < ALONE, f"sequence {seq}"


@pytest.mark.parametrize(("probe", "noise_std"), SETTINGS)
def test_golden_scores_in_one_padded_batch(golden_model, probe, noise_std):
    sequences = [s | {"tail": [7, 9, 11][: i % 4]} for i, s in enumerate(GOLDEN["sequences"])]
    rollouts = padded(rollouts_of(sequences), left=2, right=1)
    scores = scores_under(golden_model, rollouts, PROBES[probe], placed_noise(rollouts, noise_std))
    assert not scores[~rollouts.reasoning_mask].any()
    tolerance = BATCHED["joint" if probe == "answer_joint" else "kl", noise_std]
    for seq, case in cases(probe, noise_std).items():
        expected = floats(case["dot_f64"]).abs()
        error = (scores[seq, rollouts.reasoning_mask[seq]] - expected).abs().max() / expected.max()
        assert float(error) < tolerance, f"sequence {seq}"


@pytest.mark.parametrize("probe", PROBES)
def test_finite_differences(probe):
    """<dJ/de, e> is the slope of J when the noisy embedding of one token is scaled along its clean embedding."""
    model = gpt2().eval()
    before, reasoning, answer = [3, 4], [8, 9, 10, 11], [12, 13]
    rollouts = rollouts_of([{"before": before, "reasoning": reasoning, "answer": answer}])
    ids = rollouts.token_ids
    noise = torch.zeros(*ids.shape, 16, dtype=torch.float64)
    noise[0, 2:6] = 0.1 * torch.randn(4, 16, dtype=torch.float64)
    clean = model.get_input_embeddings()(ids).detach()

    def outcome(embeddings):
        with torch.no_grad():
            logits = model(inputs_embeds=embeddings).logits[0, 5:7]
        if probe == "answer_joint":
            return logits.log_softmax(-1)[[0, 1], answer].mean()
        return logits[0].log_softmax(-1) if probe == "last" else logits.mean(0).log_softmax(-1)

    def objective(embeddings):
        p, q = outcome(clean), outcome(embeddings)
        return float(p - q) if probe == "answer_joint" else float((p.exp() * (p - q)).sum())

    expected = []
    for column in range(2, 6):
        step = torch.zeros_like(clean)
        step[0, column] = 1e-5 * clean[0, column]
        expected.append(abs(objective(clean + noise + step) - objective(clean + noise - step)) / 2e-5)
    scores = scores_under(model, rollouts, PROBES[probe], noise)[0, 2:6]
    assert max(expected) > 1e-3
    assert scores.tolist() == pytest.approx(expected, abs=1e-7 * max(1.0, max(expected)))


@pytest.mark.parametrize("probe", ["last", "answer_mean"])
def test_kl_gradient_vanishes_without_noise(golden_model, probe):
    rollouts = rollouts_of(golden("oar_g")["sequences"][:2])
    quiet = scores_under(golden_model, rollouts, PROBES[probe], torch.zeros(*rollouts.token_ids.shape, 32))
    loud = scores_under(golden_model, rollouts, PROBES[probe], 1e-2 * torch.randn(*rollouts.token_ids.shape, 32))
    assert quiet.max() < 1e-6
    assert loud.max() > 1e-5


SEQUENCES = [
    {"before": [1, 2, 3], "reasoning": [4, 5, 6, 7, 8], "conclude": [9], "answer": [10, 11]},
    {"before": [12], "reasoning": [13, 14, 15], "answer": [16], "tail": [17]},
]


def test_own_noise_is_the_seeds_and_averages_over_draws():
    model, rollouts = gpt2(), rollouts_of(SEQUENCES)

    def scores(**settings):
        return OarG(stability_rows=0, **settings)(model, rollouts)

    torch.testing.assert_close(scores(seed=3), scores(seed=3), rtol=0, atol=0)
    assert not torch.allclose(scores(seed=3), scores(seed=4), rtol=1e-3)
    other_step = OarG(seed=3, stability_rows=0)(model, rollouts_of(SEQUENCES, step=1))
    assert not torch.allclose(scores(seed=3), other_step, rtol=1e-3)
    # m draws contain the first m - 1: their sums differ by one draw, which is positive
    sums = [m * scores(seed=3, num_draws=m) for m in (1, 2, 3)]
    mask = rollouts.reasoning_mask
    assert (sums[1] > sums[0])[mask].all()
    assert (sums[2] > sums[1])[mask].all()
    # without noise all draws are the same and the joint probe alone has a gradient
    joint = {"probe": ProbeSchedule("answer_joint"), "noise_std": 0.0}
    torch.testing.assert_close(scores(num_draws=3, **joint), scores(**joint), rtol=0, atol=1e-12)
    assert (scores(**joint)[mask] > 1e-6).all()


def test_noise_has_its_standard_deviation():
    """The KL's gradient is linear in small noise (Fisher matrix times noise): ten times the noise, ten times the score."""
    model, rollouts = gpt2(), rollouts_of(SEQUENCES)
    small, large = (OarG(noise_std=s, stability_rows=0)(model, rollouts)[rollouts.reasoning_mask] for s in (1e-5, 1e-4))
    torch.testing.assert_close(large / small, torch.full_like(small, 10.0), rtol=0.05, atol=0)


def test_rank_stability_and_cost_are_reported():
    model, rollouts = gpt2(), rollouts_of(SEQUENCES)
    exact = OarG(ProbeSchedule("answer_joint"), noise_std=0.0)
    exact(model, rollouts)
    assert exact.metrics["rank_stability"] == pytest.approx(1.0)
    noisy = OarG(noise_std=1e-3, num_draws=2)
    both = noisy(model, rollouts)
    first = OarG(noise_std=1e-3, stability_rows=0)(model, rollouts)
    second = 2 * both - first
    pairs = [(first[i, m].numpy(), second[i, m].numpy()) for i, m in enumerate(rollouts.reasoning_mask)]
    expected = [spearmanr(*pair).statistic for pair in pairs if len(pair[0]) > 1]
    single = sum(expected) / len(expected)
    assert noisy.metrics["rank_stability"] == pytest.approx(2 * single / (1 + single), abs=1e-6)  # of means of two
    assert noisy.metrics["rank_stability"] < 1
    read = int(rollouts.attention_mask.sum())
    # 2 rows: prompts of 3, then 7 up to the last token of the longer answer: clean once, each draw there and back
    assert noisy.metrics["forward_equivalents"] == (2 * 3 + 2 * 7 + 2 * 2 * 14) / read
    off = OarG(stability_rows=0)
    off(model, rollouts)
    assert off.metrics == {"forward_equivalents": (2 * 3 + 14 + 2 * 14) / read}


def test_the_correlation_of_means_is_that_of_single_draws_by_spearman_and_brown():
    generator = np.random.default_rng(0)
    truth, noise = generator.normal(size=20_000), generator.normal(size=(2, 8, 20_000)) * 1.5
    single = np.corrcoef(truth + noise[0, 0], truth + noise[1, 0])[0, 1]
    means = np.corrcoef(truth + noise[0].mean(0), truth + noise[1].mean(0))[0, 1]
    assert of_mean(single, 8) == pytest.approx(means, abs=0.02)
    assert of_mean(single, 1) == pytest.approx(single)
    assert of_mean(-0.3, 16) == -0.3


def test_planted_key_token_stands_out(copying_model):
    """A sketch, not a guarantee: averaged draws put the key first far above chance (1 in 6)."""
    model, draw = copying_model
    rollouts, key_columns = draw(24, seed=5)
    importance = OarG(num_draws=8, noise_std=1e-2)(model, rollouts)
    assert float((importance.argmax(1) == key_columns).double().mean()) > 0.5


def test_scaled_gradients_are_exact_where_there_is_room():
    """By powers of two, with nothing to scale in a row of zeros; the scaled numbers stay finite."""
    pull = torch.tensor([[[3e-9, -1e-9]], [[0.0, 0.0]], [[0.75, -40.0]], [[1e-44, 0.0]]])
    scale = scale_to_one(pull)
    assert scale.tolist() == [2.0**28, 1.0, 2.0**-6, 2.0**99]
    assert (pull * scale[:, None, None]).isfinite().all()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"noise_std": -1e-3}, r"scorer\.noise_std .* got -0\.001"),
        ({"noise_std": 0.0}, r"scorer\.noise_std=0 makes every score zero"),
        (
            {"noise_std": 0.0, "probe": ProbeSchedule("answer_joint", warmup="last", warmup_steps=3)},
            r"scorer\.noise_std=0 makes every score zero",
        ),
        ({"num_draws": 0}, r"scorer\.num_draws .* got 0"),
        ({"token_budget": 0}, r"scorer\.token_budget .* got 0"),
    ],
)
def test_errors_name_the_key(settings, message):
    with pytest.raises(ValueError, match=message):
        OarG(**settings)


def test_noiseless_joint_probe_may_have_an_unused_warm_up():
    assert OarG(ProbeSchedule("answer_joint", warmup="last", warmup_steps=0), noise_std=0.0).noise_std == 0
