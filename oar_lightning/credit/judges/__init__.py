"""Judges of steps: which steps of a completion are wrong."""

from oar_lightning.credit.judges.base import Judge, Solution, SpanJudge, Verdict
from oar_lightning.credit.judges.endpoint import EndpointJudge

__all__ = ["EndpointJudge", "Judge", "Solution", "SpanJudge", "Verdict"]
