"""The tables beside that of agreement: each measure under its name, each estimator in the ranking's order."""

from __future__ import annotations

import math

import torch
from support.relays import relays

from oar_lightning.lab.measure_tables import measure_tables
from oar_lightning.lab.types import Estimate, Findings, Measure, Studied
from oar_lightning.reporting.statistics import Interval


def findings(**parts) -> Findings:
    rollouts = relays(3)
    zeros = torch.zeros(rollouts.token_ids.shape)
    studied = Studied(rollouts, (0, 1, 2), ("a", "b", "c"), (True, False, True), zeros, zeros, rollouts.reasoning_mask)
    estimates = tuple(Estimate(name, zeros, zeros, False, 0.0) for name in ("mine", "yours"))
    return Findings(studied, (), estimates, **parts)


def test_a_table_for_each_kind() -> None:
    values = {"mine": (1.0, 1.4, 2.1), "yours": (math.nan,) * 3}
    keys = ("direct.pad.comprehensiveness", "direct.pad.infidelity", "total.pad.comprehensiveness", "stability.sensitivity")
    interval = Interval(0.05, 0.01, 0.09, 16)
    unknown = Interval(math.nan, math.nan, math.nan, 16)
    own = {
        "raw": interval,
        "variance/(unweighted)": interval,
        "variance/(values)": interval,
        "adam_cosine/(values)": unknown,
    }
    found = measure_tables(
        findings(
            measures=tuple(Measure(key, "in words", "high", values) for key in keys),
            gradients={"(unweighted)": own, "mine": own, "yours": own},
        )
    )
    removal, stability, gradients = found
    assert list(removal.header) == ["estimator", "direct, pad", "total, pad"]
    assert removal.rows[0][:1] == ["mine"]
    assert removal.rows[0][1].startswith("1.50 [")
    assert list(removal.rows[1]) == ["yours", "-", "-"]
    assert list(stability.header) == ["estimator", "change of scores, embeddings moved"]
    assert list(gradients.header) == [
        "credit",
        "signal share, %",
        "variance over (unweighted)",
        "cosine of means with (values), Adam's scale",
    ]
    assert [row[0] for row in gradients.rows] == ["(unweighted)", "mine", "yours"]
    assert list(gradients.rows[1][1:]) == ["5.0 [1.0, 9.0]", "0.05 [0.01, 0.09]", "-"]


def test_without_measures_there_is_no_table() -> None:
    assert measure_tables(findings()) == []
