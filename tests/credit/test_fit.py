"""Pairs of a scorer and a gate, in training and out of it; the rest of a method is in training/test_method.py."""

from __future__ import annotations

import pytest

from oar_lightning.common.config_check import ConfigError
from oar_lightning.credit.fit import check_fit, usual_gate
from oar_lightning.credit.gates import BilevelGate, ContrastGate, Gate, SelectGate, SignedGate
from oar_lightning.credit.scorers import Entropy, OarG, Scorer, Uniform
from oar_lightning.credit.scorers.forward_free import Ktae, Otb, Ucas


@pytest.mark.parametrize(
    ("scorer", "gate"),
    [(OarG(), BilevelGate()), (Uniform(), BilevelGate()), (Entropy(region="response"), BilevelGate(region="response"))],
)
def test_pairs_that_fit(scorer: Scorer, gate: Gate, caplog: pytest.LogCaptureFixture) -> None:
    check_fit(scorer, gate)
    assert not caplog.messages


@pytest.mark.parametrize(
    ("scorer", "gate", "message"),
    [
        (Otb(), BilevelGate(), "Otb gives scores with a sign, which BilevelGate cannot read; use gate=signed"),
        (OarG(), SignedGate(), "OarG gives importance >= 0; use gate=bilevel"),
        (OarG(), BilevelGate(region="response"), "OarG scores those before the answer only; use gate.region=reasoning"),
        (Otb(), SignedGate("add"), "Otb gives whole token advantages, .* and gate.combine=add counts it once more"),
        (Ucas(), SignedGate("multiply"), "use gate=signed with gate.combine=replace"),
        (Ucas(), ContrastGate(), "and ContrastGate counts it once more"),
        (Uniform(), SelectGate(), "scorer=uniform scores 0 everywhere, of which SelectGate"),
    ],
)
def test_pairs_that_do_not(scorer: Scorer, gate: Gate, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        check_fit(scorer, gate)


@pytest.mark.parametrize(
    ("scorer", "gate"),
    [(OarG(), BilevelGate()), (Uniform(), BilevelGate()), (Otb(), SignedGate("replace")), (Ktae(), SignedGate("add"))],
)
def test_the_gate_of_a_scorer_for_which_none_is_named(scorer: Scorer, gate: Gate) -> None:
    usual = usual_gate(scorer)
    assert type(usual) is type(gate)
    assert getattr(usual, "combine", None) == getattr(gate, "combine", None)
    check_fit(scorer, usual)
