"""Scoring that is out of memory at chosen passes, held against scoring that is not: the same scores."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from support.out_of_memory import lowered, out
from support.toy import gpt2, rollouts_of

from oar_lightning.credit import predictions
from oar_lightning.credit.scorers import Entropy, OarG, OarP, OarPApproximate, Scorer, Spans, baselines, oar_g
from oar_lightning.credit.scorers.oar_p import base
from oar_lightning.credit.scorers.turning_point.deviations import deviations
from oar_lightning.credit.segments import EntropyCuts, LowProbabilityCuts
from oar_lightning.policy.out_of_memory import OutOfMemory
from oar_lightning.types import Rollouts

SEQUENCES = [
    {"before": [3, 4, 5, 6], "reasoning": [8, 9, 10, 11, 12], "conclude": [11], "answer": [12, 13, 14], "tail": [1]},
    {"before": [14], "reasoning": [15, 16, 17, 18, 19, 20, 21], "answer": [22]},
    {"before": [23, 24], "reasoning": [25], "conclude": [26, 27], "answer": [28, 29], "tail": [31, 32]},
    {"before": [5, 6, 7], "reasoning": [33, 33, 34, 33, 35], "conclude": [36], "answer": [37, 38]},
]
SCORERS: dict[str, Callable[..., Scorer]] = {
    "entropy": Entropy,
    "oar_g": OarG,
    "oar_p": OarP,
    "attribution": OarPApproximate,
    "spans": lambda **kw: OarPApproximate(coarse=Spans(2), **kw),
}


def cramp_scoring(monkeypatch: pytest.MonkeyPatch, room: int) -> None:
    """Decoders refuse more than `room` new tokens at once, and more than 8 times as many columns to attend to."""

    def cramped(decoder: Any) -> Any:
        def call(past: Any, embeds: Any, *args: Any, **more: Any) -> Any:
            tokens, seen = embeds.shape[:2].numel(), len(embeds) * (past.width + embeds.shape[1])
            if tokens > room or seen > 8 * room:
                raise out(tokens)
            return decoder(past, embeds, *args, **more)

        return call

    for module in (oar_g, base):
        choose = module.choose_decoder
        monkeypatch.setattr(module, "choose_decoder", lambda *args, choose=choose, **more: cramped(choose(*args, **more)))
    logprobs = baselines.token_logprobs

    def token_logprobs(model: Any, ids: Any, *args: Any, **more: Any) -> Any:
        if ids.numel() > room:
            raise out(ids.numel())
        return logprobs(model, ids, *args, **more)

    monkeypatch.setattr(baselines, "token_logprobs", token_logprobs)


@pytest.mark.parametrize("room", [16, pytest.param(30, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", SCORERS)
def test_scores_are_those_of_an_undisturbed_run(
    name: str, room: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    model, rollouts = gpt2(), rollouts_of(SEQUENCES)
    expected = SCORERS[name]()(model, rollouts)
    cramp_scoring(monkeypatch, room)
    scorer = SCORERS[name](token_budget="auto")
    torch.testing.assert_close(scorer(model, rollouts), expected, rtol=1e-7, atol=1e-12)
    assert float(expected.max()) > 0
    assert lowered(caplog, "scorer.token_budget")
    caplog.clear()
    torch.testing.assert_close(scorer(model, rollouts), expected, rtol=1e-7, atol=1e-12)
    assert not caplog.records


@pytest.mark.parametrize("name", SCORERS)
def test_a_completion_that_cannot_be_scored_ends_the_run(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    cramp_scoring(monkeypatch, 1)
    with pytest.raises(OutOfMemory, match=r"scorer.token_budget=auto: a single row of \d+ tokens .*; lower rollout"):
        SCORERS[name](token_budget="auto")(gpt2(), rollouts_of(SEQUENCES))


@pytest.mark.parametrize(
    ("reads", "key"),
    [
        (lambda model, rollouts: EntropyCuts()(model, rollouts, rollouts.reasoning_mask).double(), "scorer.segments"),
        (
            lambda model, rollouts: LowProbabilityCuts(every=2)(model, rollouts, rollouts.reasoning_mask).double(),
            "scorer.segments",
        ),
        (lambda model, rollouts: torch.tensor([len(row) for row in deviations(model, rollouts)]), "reading completions"),
    ],
)
def test_passes_that_no_setting_bounds_become_smaller(
    reads: Callable[[Any, Rollouts], torch.Tensor], key: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Their errors named settings that there are not."""
    model, rollouts = gpt2(), rollouts_of(SEQUENCES)
    expected = reads(model, rollouts)
    states = predictions.hidden_states

    def cramped(model: Any, mask: Any, ids: Any) -> Any:
        if ids.numel() > 30:
            raise out(ids.numel())
        return states(model, mask, ids)

    monkeypatch.setattr(predictions, "hidden_states", cramped)
    torch.testing.assert_close(reads(model, rollouts), expected)
    assert lowered(caplog, f"token budget of {key}")
    assert expected.any()
