"""A lab's work: completions -> estimates and truths -> measures, with what was done so far where it is stopped."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from oar_lightning.common.progress import counted_progress
from oar_lightning.lab.config import LabConfig
from oar_lightning.lab.estimators import Estimator, estimate
from oar_lightning.lab.measures import measures_of
from oar_lightning.lab.reliability import Reliability, reliability, with_ceilings
from oar_lightning.lab.store import Store
from oar_lightning.lab.truth import Source, around_free, monte_carlo
from oar_lightning.lab.types import Estimate, Findings, Measure, Studied, Truth
from oar_lightning.lab.values import Sampler, Spent
from oar_lightning.rollout.continuations import Continuer

log = logging.getLogger(__name__)


@dataclass
class Lab:
    """Estimators and sources of truth, and what they have said so far of the completions."""

    model: Any
    studied: Studied
    estimators: Sequence[Estimator]
    sources: Mapping[str, Source]
    continuer: Continuer
    store: Store
    config: LabConfig
    seed: int = 0
    estimates: list[Estimate] = field(default_factory=list)
    truths: list[Truth] = field(default_factory=list)
    spent: Spent = Spent(0, 0)

    def run(self) -> bool:
        """Ask all estimators and all sources; False where that was interrupted, and a part of the answers is there."""
        try:
            self._estimate()
        except KeyboardInterrupt:
            self._locate()
            return False
        self._locate()
        return not self.config.continuations or self._sample()

    def _estimate(self) -> None:
        with counted_progress("estimators", "of them", len(self.estimators)) as advance:
            for estimator in self.estimators:
                try:
                    self.estimates.append(estimate(estimator, self.model, self.studied))
                except ValueError as error:
                    raise ValueError(f"lab.estimators.{estimator.name}: {error}") from error
                advance(1)

    def _locate(self) -> None:
        """Ask the sources that need no sampling. One that knows nothing of any completion is left out, which is logged."""
        for name, source in self.sources.items():
            truth = source(name, self.studied)
            if bool(truth.known.any()):
                self.truths.append(truth)
            else:
                log.info("lab.truths.%s knows nothing of these completions", name)

    def _sample(self) -> bool:
        """Estimate the values around the free tokens; False where that was interrupted."""
        prefixes = around_free(self.studied)
        sampler = Sampler(self.continuer, self.store, self.config.values(self.seed))
        with counted_progress(
            "values", "batches of continuations", sampler.batches(self.studied.rollouts, prefixes)
        ) as advance:
            rewards, self.spent, whole = sampler(self.model, self.studied.rollouts, prefixes, advance)
        truth = monte_carlo(self.studied, rewards, self.config.decisive)
        if bool(truth.known.any()):
            self.truths.append(truth)
        else:
            log.warning("lab: no completion has values (none has a gold answer and free tokens, or lab.budget is too small)")
        return whole

    def reliability(self, truth: Truth) -> Reliability | None:
        return reliability(truth, self.studied, self.config.decisive)

    def findings(self) -> Findings:
        """What is known so far."""
        measures: list[Measure] = []
        for truth in self.truths:
            found = measures_of(truth, self.estimates, self.studied)
            measures += with_ceilings(found, truth, self.reliability(truth), self.estimates, self.studied)
        return Findings(self.studied, tuple(self.truths), tuple(self.estimates), tuple(measures))
