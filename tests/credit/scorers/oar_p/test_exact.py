"""OAR-P against golden scores, brute force over a plain forward pass, and a planted key token."""

from __future__ import annotations

import pytest
import torch
from support.toy import golden, gpt2, padded, rollouts_of

from oar_lightning.credit.scorers import OarP, ProbeSchedule
from oar_lightning.credit.scorers.probes import PROBES

GOLDEN = golden("oar_p")
# kinks: the golden model's RMSNorm and rotary tables work in float32, so another batch shape may differ by a float32 rounding
ALONE, BATCHED = 1e-9, 3e-6


def scores_of(model, rollouts, probe):
    scorer = OarP(ProbeSchedule(probe), 10**6, fill_token_id=GOLDEN["mask_token_id"], share_prefixes=False)
    return scorer(model, rollouts)[rollouts.reasoning_mask]


def expected_scores(probe: str) -> dict[int, torch.Tensor]:
    found = {c["seq"]: torch.tensor(c["score_f64"], dtype=torch.float64) for c in GOLDEN["cases"] if c["probe"] == probe}
    assert len(found) == len(GOLDEN["sequences"])
    # the golden joint scores are signed (target - masked)
    return {seq: score.abs() for seq, score in found.items()} if probe == "answer_joint" else found


@pytest.mark.parametrize("probe", PROBES)
def test_golden_scores(golden_model, probe):
    for seq, expected in expected_scores(probe).items():
        rollouts = rollouts_of([GOLDEN["sequences"][seq]])
        scores = scores_of(golden_model, rollouts, probe)
        assert scores.dtype == torch.float64
        torch.testing.assert_close(scores, expected, rtol=0, atol=ALONE, msg=lambda m, seq=seq: f"sequence {seq}: {m}")


@pytest.mark.parametrize("probe", PROBES)
@pytest.mark.parametrize("token_budget", [1, 50, 10**6])
def test_golden_scores_in_one_padded_batch(golden_model, probe, token_budget):
    """Six sequences of different lengths, left- and right-padded, with a tail after the answer."""
    sequences = [s | {"tail": [7, 9, 11][: i % 4]} for i, s in enumerate(GOLDEN["sequences"])]
    rollouts = padded(rollouts_of(sequences), left=2, right=1)
    importance = OarP(ProbeSchedule(probe), token_budget, fill_token_id=GOLDEN["mask_token_id"])(golden_model, rollouts)
    assert importance.dtype == torch.float64
    for seq, expected in expected_scores(probe).items():
        actual = importance[seq, rollouts.reasoning_mask[seq]]
        torch.testing.assert_close(actual, expected, rtol=0, atol=BATCHED)


def test_a_token_that_is_the_fill_token_scores_zero(golden_model):
    """Sequence 0 holds the mask id at index 4 of its reasoning: nothing is changed there."""
    assert GOLDEN["sequences"][0]["reasoning"][4] == GOLDEN["mask_token_id"]
    rollouts = rollouts_of(GOLDEN["sequences"][:1])
    for probe in PROBES:
        scores = OarP(ProbeSchedule(probe))(golden_model, rollouts)[rollouts.reasoning_mask]
        assert scores[4] < 1e-12
        assert scores[3] > 1e-4
        # the pad token is the default fill, any other may be chosen
        other = OarP(ProbeSchedule(probe), fill_token_id=5)(golden_model, rollouts)[rollouts.reasoning_mask]
        assert other[4] > 1e-4


def brute_force(model, sequence, probe, fill):
    """One unpadded forward pass for every counterfactual, scored from the definitions."""
    ids = [t for part in ("before", "reasoning", "conclude", "answer") for t in sequence.get(part, [])]
    end = len(ids)
    start = end - len(sequence["answer"])

    def outcome(tokens):
        with torch.no_grad():
            logits = model(torch.tensor([tokens])).logits[0, start - 1 : end - 1]
        if probe == "last":
            return logits[0].softmax(-1)
        if probe == "answer_mean":
            return logits.mean(0).softmax(-1)
        return logits.log_softmax(-1)[torch.arange(end - start), torch.tensor(tokens[start:end])].mean()

    clean, scores = outcome(ids), []
    for j in range(len(sequence["reasoning"])):
        changed = list(ids)
        changed[len(sequence["before"]) + j] = fill
        other = outcome(changed)
        scores.append(abs(clean - other) if probe == "answer_joint" else (clean * (clean / other).log()).sum())
    return torch.stack(scores)


@pytest.mark.parametrize("probe", PROBES)
@pytest.mark.parametrize("token_budget", [1, 50, 10**6])
def test_brute_force_on_absolute_positions(probe, token_budget):
    """GPT-2 counts positions from the first real token: left padding must not shift them."""
    model = gpt2().eval()
    sequences = [
        {"before": [3, 4, 5, 6, 7], "reasoning": [8, 9, 10], "conclude": [11], "answer": [12, 13], "tail": [1, 2]},
        {"before": [14], "reasoning": [15, 16, 17, 18, 19, 20, 21], "answer": [22]},
        {"before": [23, 24], "reasoning": [25], "conclude": [26, 27], "answer": [28, 29, 30], "tail": [31]},
    ]
    rollouts = padded(rollouts_of(sequences), left=3, right=2)
    importance = OarP(ProbeSchedule(probe), token_budget, fill_token_id=39)(model, rollouts)
    for i, sequence in enumerate(sequences):
        expected = brute_force(model, sequence, probe, 39)
        assert expected.max() > 1e-2
        torch.testing.assert_close(importance[i, rollouts.reasoning_mask[i]], expected, rtol=0, atol=1e-11)


def test_the_fill_may_be_token_zero():
    """Which is a token as any other, not the absence of a choice."""
    model = gpt2().eval()
    sequence = {"before": [3, 4], "reasoning": [8, 9, 10], "answer": [12]}
    rollouts = rollouts_of([sequence], pad_token_id=7)
    scores = OarP(fill_token_id=0)(model, rollouts)[rollouts.reasoning_mask]
    torch.testing.assert_close(scores, brute_force(model, sequence, "last", 0), rtol=0, atol=1e-11)
    assert (scores - brute_force(model, sequence, "last", 7)).abs().max() > 1e-4


def test_cost_is_counted():
    """One row, one budget: the clean pass up to the answer and a counterfactual per reasoning token, without the tail."""
    rollouts = rollouts_of([{"before": [1, 2], "reasoning": [3, 4, 5], "answer": [6], "tail": [7, 8, 9, 10]}])
    for share, tokens in ((False, 4 * 5), (True, 5 + 3 * 3)):  # padded to the longest suffix
        scorer = OarP(share_prefixes=share)
        scorer(gpt2(), rollouts)
        assert scorer.metrics == {"forward_equivalents": tokens / 10}


def test_warm_up_probe():
    model = gpt2()
    sequences = [{"before": [1, 2], "reasoning": [3, 4, 5], "answer": [6, 7]}]
    scorer = OarP(ProbeSchedule("answer_mean", warmup="last", warmup_steps=2))
    for step, probe in enumerate(["last", "last", "answer_mean", "answer_mean"]):
        rollouts = rollouts_of(sequences, step=step)
        torch.testing.assert_close(scorer(model, rollouts), OarP(ProbeSchedule(probe))(model, rollouts), rtol=0, atol=0)


@pytest.mark.parametrize("probe", PROBES)
def test_planted_key_token_ranks_first(copying_model, probe):
    """The answer repeats the one token of a class of its own, wherever it stands among fillers."""
    model, draw = copying_model
    rollouts, key_columns = draw(24, seed=5)
    importance = OarP(ProbeSchedule(probe))(model, rollouts)
    assert importance.argmax(1).tolist() == key_columns.tolist()
    rest = importance.scatter(1, key_columns[:, None], 0.0)
    assert (importance.gather(1, key_columns[:, None]).squeeze(1) > 3 * rest.amax(1)).all()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: OarP(token_budget=0), r"scorer\.token_budget .* got 0"),
        (lambda: ProbeSchedule(name="mean"), r"scorer\.probe\.name must be one of last, answer_mean, answer_joint, got 'mean'"),
        (lambda: ProbeSchedule(warmup="mean"), r"scorer\.probe\.warmup must be"),
        (lambda: ProbeSchedule(warmup_steps=-1), r"scorer\.probe\.warmup_steps .* got -1"),
    ],
)
def test_errors_name_the_key(make, message):
    with pytest.raises(ValueError, match=message):
        make()
