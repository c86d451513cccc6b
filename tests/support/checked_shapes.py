"""Imports modules whose signatures name shapes, such that the shapes of each call are checked; before any test does."""

import support.typechecker  # noqa: F401  (the hook reads it as an attribute of its package)
from jaxtyping import install_import_hook

# not the decoder: most calls of most tests are its own, and its tests hold its values against those of other programs
# `ranges` has the decorator that wraps what the others' checks wrap
ROOMS = ["common.ranges", "credit", "objective", "policy.language_model", "policy.lm_head", "policy.linear_logprobs", "types"]

with install_import_hook([f"oar_lightning.{room}" for room in ROOMS], "support.typechecker.typechecked"):
    import oar_lightning.credit.gates.bilevel
    import oar_lightning.credit.scorers
    import oar_lightning.objective.advantage
    import oar_lightning.objective.diagnostics
    import oar_lightning.objective.loss
    import oar_lightning.policy.language_model
    import oar_lightning.policy.lm_head
    import oar_lightning.types  # noqa: F401
