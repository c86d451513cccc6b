"""Curves and what follows from them, against a transcription for one text at a time, and a planted key."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from support.removal import SCORABLE, SEQUENCES

from oar_lightning.lab.removal.curves import RemovalConfig, direct_removal, normalized, total_removal
from oar_lightning.lab.removal.infidelity import infidelity
from oar_lightning.lab.types import Measure

FRACTIONS = (0.01, 0.05, 0.1, 0.2, 0.5)
WEIGHTS = torch.tensor(np.random.default_rng(0).normal(size=(4, 7)))


def interacting(sets, fill):
    """An outcome in which the removed tokens' weights add up, and the first two matter together."""
    together = sets.removed[:, :2].all(1) if sets.removed.shape[1] > 1 else 0
    return 3.0 - (WEIGHTS[sets.row] * sets.removed).sum(1) + 0.7 * together * (fill == "pad")


def by_hand(weights, scores, fill):
    """Outcomes after deletion and insertion of a text, and their summaries, with sets of numbers."""
    n = len(weights)
    order = sorted(range(n), key=lambda t: -scores[t])

    def f(gone):
        return 3.0 - sum(weights[t] for t in gone) + 0.7 * ({0, 1} <= gone) * (fill == "pad")

    tops = [set(order[: math.ceil(q * n)]) for q in (0, *FRACTIONS, 1)]
    deletion, insertion = [f(top) for top in tops], [f(set(range(n)) - top) for top in tops]
    return (
        deletion,
        insertion,
        np.mean([f(set()) - v for v in deletion[1:-1]]),
        np.mean([f(set()) - v for v in insertion[1:-1]]),
    )


def test_a_transcription(rollouts) -> None:
    rng = np.random.default_rng(1)
    given = {name: [rng.normal(size=len(s["reasoning"])) for s in SEQUENCES] for name in ("one", "other")}
    scores = {}
    for name, of_rows in given.items():
        scores[name] = torch.zeros(rollouts.token_ids.shape, dtype=torch.float64)
        for row, values in enumerate(of_rows):
            scores[name][row, rollouts.reasoning_mask[row]] = torch.tensor(values)
    measures, curves = direct_removal(interacting, rollouts, scores, RemovalConfig(("pad", "random_token"), FRACTIONS))
    measure, curve = {m.key: m for m in measures}, {c.key: c for c in curves}
    assert len(measure) == len(curve) == 4
    for fill in ("pad", "random_token"):
        for name, of_rows in given.items():
            expected = [by_hand(WEIGHTS[row].tolist()[: len(of_rows[row])], of_rows[row], fill) for row in SCORABLE]
            for kind, at in (("comprehensiveness", 2), ("sufficiency", 3)):
                values = measure[f"direct.{fill}.{kind}"].values[name]
                assert math.isnan(values[2]), "a completion without an answer"
                assert [values[row] for row in SCORABLE] == pytest.approx([e[at] for e in expected])
            for kind, at in (("deletion", 0), ("insertion", 1)):
                of_kind = curve[f"direct.{fill}.{kind}"]
                assert of_kind.fraction == (0, *FRACTIONS, 1)
                assert of_kind.outcome[name] == pytest.approx(np.mean([e[at] for e in expected], 0).tolist())
    assert measure["direct.pad.comprehensiveness"].better == "high"
    assert measure["direct.pad.sufficiency"].better == "low"


def test_the_planted_key_leads_a_random_order(planted) -> None:
    """The outcome is the key's alone: without it all is lost, with it alone all is there."""
    rollouts, places = planted

    def outcome(sets, fill):
        return -1.0 * sets.removed.gather(1, places[sets.row][:, None])[:, 0]

    columns = places + 1
    key = torch.zeros(rollouts.token_ids.shape).scatter(1, columns[:, None], 1.0)
    generator = torch.Generator().manual_seed(0)
    scores = {"oracle": key, "random": torch.rand(key.shape, generator=generator), "worst": -key, "same": torch.zeros_like(key)}
    measures, _ = direct_removal(outcome, rollouts, scores, RemovalConfig(("pad",)))
    for measure, best in zip(measures, (1.0, 0.0), strict=True):
        means = {name: float(np.mean(values)) for name, values in measure.values.items()}
        assert means["oracle"] == best
        assert means["worst"] == 1 - best
        ratios = {name: float(np.mean(values)) for name, values in normalized(measure, range(len(places))).values.items()}
        assert ratios["random"] == pytest.approx(0.0, abs=1e-12)
        assert ratios["oracle"] == pytest.approx(1.0)
        assert ratios["worst"] < 0
        expected = (means["random"] - means["same"]) / (means["random"] - means["oracle"])
        assert ratios["same"] == pytest.approx(expected)


def test_normalized_needs_an_oracle_that_leads() -> None:
    values = {"random": (0.1, 0.2, math.nan), "oracle": (0.1, 0.2, math.nan), "other": (0.5, 0.5, math.nan)}
    measure = Measure("a.b", "a measure", "high", values)
    assert all(math.isnan(v) for row in normalized(measure, range(3)).values.values() for v in row)
    with pytest.raises(KeyError, match=r"a\.b has no estimator truth; there are random, oracle, other"):
        normalized(measure, range(3), oracle="truth")


def test_completions_of_a_problem_are_no_new_evidence_that_the_oracle_leads() -> None:
    """Without a true lead a mean of 8 problems is above 0 by two standard errors in 4 % of draws, by completions in more."""
    draws, opened = np.random.default_rng(0), [0, 0]
    for _ in range(400):
        gaps = np.repeat(draws.normal(size=8), 4) + 0.1 * draws.normal(size=32)
        measure = Measure("a.b", "a measure", "high", {"random": (0.0,) * 32, "oracle": tuple(gaps.tolist())})
        for way, problem in enumerate((np.repeat(np.arange(8), 4).tolist(), range(32))):
            opened[way] += not math.isnan(normalized(measure, problem).values["oracle"][0])
    assert opened[0] < 0.08 * 400 < 0.12 * 400 < opened[1]


class Table:
    """Total effects that are known."""

    def __init__(self, effects) -> None:
        self.effects, self.wanted = effects, None

    def total_effects(self, wanted, fills):
        self.wanted = wanted
        return {fill: self.effects.masked_fill(~wanted, math.nan) * (i + 1) for i, fill in enumerate(fills)}


def test_total_removal_is_the_mean_effect_of_the_first_tokens(rollouts) -> None:
    rng = np.random.default_rng(2)
    effects = torch.tensor(rng.normal(size=(4, 7)))
    scores = torch.zeros(rollouts.token_ids.shape, dtype=torch.float64)
    given = [rng.normal(size=len(s["reasoning"])) for s in SEQUENCES]
    for row, values in enumerate(given):
        scores[row, rollouts.reasoning_mask[row]] = torch.tensor(values)
    table = Table(effects)
    measures, curves = total_removal(table, rollouts, {"one": scores}, RemovalConfig(("pad", "model_sample"), FRACTIONS))
    means = []
    for row in SCORABLE:
        order = np.argsort(-given[row])
        assert table.wanted[row].sum() == math.ceil(0.5 * len(order)), "no more than is needed"
        means.append([effects[row, order[: math.ceil(q * len(order))].copy()].mean().item() for q in FRACTIONS])
    for i, measure in enumerate(measures):
        values = measure.values["one"]
        assert math.isnan(values[2])
        assert [values[row] for row in SCORABLE] == pytest.approx([(i + 1) * np.mean(m) for m in means])
        assert curves[i].outcome["one"] == pytest.approx((np.mean(means, 0) * (i + 1)).tolist())
    assert not table.wanted[2].any()


@pytest.mark.parametrize(
    ("settings", "message"),
    [({"fills": ()}, "fills"), ({"fills": ("zero",)}, "fills")]
    + [({"fractions": f}, "fractions") for f in ((), (0.0, 0.5), (0.5, 0.2), (0.2, 0.2), (0.5, 1.0))],
)
def test_errors_name_the_key(settings, message) -> None:
    with pytest.raises(ValueError, match=rf"lab\.faithfulness\.{message}=.* must be"):
        RemovalConfig(**settings)


def test_scores_that_are_nan_have_no_values(rollouts) -> None:
    scores = torch.rand(rollouts.token_ids.shape, generator=torch.Generator().manual_seed(0))
    broken = scores.masked_fill(rollouts.reasoning_mask & (torch.arange(4) == 1)[:, None], math.nan)
    outside = scores.masked_fill(~rollouts.reasoning_mask, math.nan)
    given = {"whole": scores, "broken": broken, "outside": outside}
    config = RemovalConfig(("pad",))
    measures = [
        *direct_removal(interacting, rollouts, given, config).measures,
        *infidelity(interacting, rollouts, given, config),
        *total_removal(Table(WEIGHTS), rollouts, given, config).measures,
    ]
    for measure in measures:
        assert [math.isnan(v) for v in measure.values["broken"]] == [False, True, True, False], measure.key
        assert measure.values["outside"] == pytest.approx(measure.values["whole"], nan_ok=True)


def test_completions_that_cannot_be_scored_have_no_values(rollouts) -> None:
    none = rollouts.select(torch.tensor([2]))
    scores = {"one": torch.zeros(none.token_ids.shape)}
    found = direct_removal(lambda sets, fill: sets.row * 1.0, none, scores, RemovalConfig(("pad",)))
    more = infidelity(lambda sets, fill: sets.row * 1.0, none, scores, RemovalConfig(("pad",)))
    for measure in (*found.measures, *more):
        assert all(math.isnan(value) for value in measure.values["one"])
    assert all(math.isnan(value) for value in found.curves[0].outcome["one"])
