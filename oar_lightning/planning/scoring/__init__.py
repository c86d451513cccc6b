"""Inputs for dry runs of scorers: as many completions as fill one pass of each kind that a scorer makes.

Each file knows a family of scorers.
"""

from oar_lightning.planning.scoring import hindsight, implicit, oar, shear, steps, total_effect
from oar_lightning.planning.scoring.base import (
    FREE,
    Batch,
    DryRunInputs,
    dry_run_budgets,
    dry_run_inputs,
    innermost,
    most_tokens,
    row_tokens,
    scorer_budget,
)
from oar_lightning.planning.scoring.hindsight import teacher_items
from oar_lightning.planning.scoring.implicit import own_model_items
from oar_lightning.planning.scoring.steps import CONTINUING, continues, continuing_inputs

__all__ = [
    "CONTINUING",
    "FREE",
    "Batch",
    "DryRunInputs",
    "continues",
    "continuing_inputs",
    "dry_run_budgets",
    "dry_run_inputs",
    "hindsight",
    "implicit",
    "innermost",
    "most_tokens",
    "oar",
    "own_model_items",
    "row_tokens",
    "scorer_budget",
    "shear",
    "steps",
    "teacher_items",
    "total_effect",
]
