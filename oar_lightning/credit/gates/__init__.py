"""Gates turn scores into token advantages: ``(scores, rollouts) -> Credit``."""

from oar_lightning.credit.gates.base import Gate, checked_credit, weighted
from oar_lightning.credit.gates.bilevel import BilevelGate
from oar_lightning.credit.gates.contrast import ContrastGate
from oar_lightning.credit.gates.direct import DirectGate
from oar_lightning.credit.gates.select import ClipGate, SelectGate
from oar_lightning.credit.gates.signed import SignedGate

__all__ = [
    "BilevelGate",
    "ClipGate",
    "ContrastGate",
    "DirectGate",
    "Gate",
    "SelectGate",
    "SignedGate",
    "checked_credit",
    "weighted",
]
