"""Median pruning in a trial's process."""

from __future__ import annotations

import optuna

from oar_lightning.sweep.storage import SweepStorage
from oar_lightning.sweep.trial import Ticket


class MedianJudge:
    """Reports a trial's intermediate values to its study, and compares them with those of other trials."""

    def __init__(self, ticket: Ticket) -> None:
        settings = ticket.pruning
        self._pruner = optuna.pruners.MedianPruner(settings.startup_trials, settings.warmup_steps)
        self._storage = SweepStorage(ticket.storage)
        self._study = optuna.load_study(ticket.sweep, self._storage, pruner=self._pruner)
        self._trial_id = self._storage.get_trial_id_from_study_id_trial_number(self._study._study_id, ticket.number)

    def is_hopeless(self, step: int, value: float) -> bool:
        """Whether the best value so far is worse than the median of the complete trials' at this step."""
        self._storage.set_trial_intermediate_value(self._trial_id, step, value)
        return bool(self._pruner.prune(self._study, self._storage.get_trial(self._trial_id)))
