"""Whether a scorer and a gate fit together, in training and wherever else both are used."""

from __future__ import annotations

import logging

from oar_lightning.common.config_check import ConfigError, warn_idle
from oar_lightning.credit.gates import BilevelGate, Gate, SignedGate
from oar_lightning.credit.scorers import Scorer, Uniform

log = logging.getLogger(__name__)


def check_fit(scorer: Scorer, gate: Gate) -> None:
    """Hold a scorer against a gate. Settings without effect are warned of.

    Raises:
        ConfigError: for a pair that cannot work or would silently do something else.
    """
    name = type(scorer).__name__
    if not isinstance(gate, Gate):
        raise ConfigError(f"gate is a {type(gate).__name__}; a gate subclasses oar_lightning.credit.gates.Gate")
    for group, component in (("scorer", scorer), ("gate", gate)):
        warn_idle(group, component.idle)
    if isinstance(scorer, Uniform):
        _check_uniform(gate)
        return
    if scorer.signed and not gate.signed:
        raise ConfigError(f"scorer {name} gives scores with a sign, which {type(gate).__name__} cannot read; use gate=signed")
    if gate.signed and not scorer.signed:
        raise ConfigError(
            f"{type(gate).__name__} reads scores with a sign, and scorer {name} gives importance >= 0; use gate=bilevel or "
            "gate=direct"
        )
    if scorer.added and gate.replaces:
        raise ConfigError(
            f"scorer {name} gives what is to be added to the group advantages, and gate.combine=replace puts it in their "
            "place; use gate.combine=add"
        )
    if scorer.whole and not gate.replaces:
        used = f"gate.combine={gate.combine}" if isinstance(gate, SignedGate) else type(gate).__name__
        raise ConfigError(
            f"scorer {name} gives whole token advantages, in which the outcome is counted, and {used} counts it once more; use "
            "gate=signed with gate.combine=replace"
        )
    if gate.region == "response" and scorer.covers == "reasoning":
        raise ConfigError(
            f"gate.region=response weights all tokens of a completion, and scorer {name} scores those before the answer only; "
            "use gate.region=reasoning"
        )


def usual_gate(scorer: Scorer) -> Gate:
    """The gate of a scorer for which none is named: OAR's, or `SignedGate` for scores with a sign."""
    return SignedGate("add" if scorer.added else "replace", region=scorer.covers) if scorer.signed else BilevelGate()


def _check_uniform(gate: Gate) -> None:
    if not isinstance(gate, BilevelGate):
        raise ConfigError(
            f"scorer=uniform scores 0 everywhere, of which {type(gate).__name__} makes something else than GRPO; use "
            "gate=bilevel, or choose a scorer"
        )
    usual = vars(BilevelGate())
    if idle := sorted(f"gate.{key}={value}" for key, value in vars(gate).items() if usual.get(key) != value):
        log.warning(
            "%s: without effect, since scorer=uniform gives all tokens the same credit; choose a scorer, e.g. "
            "+experiment=oar_g",
            ", ".join(idle),
        )
