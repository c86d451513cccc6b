"""Memory of a run before it is started: a policy without weights, dry runs of its passes, and the sums over them."""

from oar_lightning.planning.config import PlanConfig

__all__ = ["PlanConfig"]
