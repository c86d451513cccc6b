"""Whether all ranks go on from the same step."""

from __future__ import annotations

import lightning as L

from oar_lightning.distributed.ranks import all_gather


class SameStart(L.Callback):
    """Ends a run whose ranks have found different checkpoints, before their collectives wait for each other in vain.

    They read them one by one, from a disk that one of them may see late. `step`: that of this rank's checkpoint.
    """

    def __init__(self, step: int) -> None:
        self.step = step

    def setup(self, trainer: L.Trainer, module: L.LightningModule, stage: str) -> None:
        """Raises: RuntimeError: on every rank."""
        steps = all_gather(self.step)
        if len(set(steps)) > 1:
            raise RuntimeError(
                f"the ranks would begin at different steps {steps}: they do not see the same checkpoint; have output_root on a "
                "disk that all nodes see, and start the run again"
            )
