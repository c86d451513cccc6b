"""Plans the memory of a run before it starts: a policy without weights, dry runs of its passes, and sums over them."""

from oar_lightning.planning.config import PlanConfig

__all__ = ["PlanConfig"]
