"""A lab's work: completions -> estimates and truths -> measures, with what was done so far where it is stopped."""

from __future__ import annotations

import dataclasses
import logging
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from oar_lightning.common.messages import named_line
from oar_lightning.common.progress import counted_progress
from oar_lightning.lab.config import LabConfig
from oar_lightning.lab.estimators import Estimator, estimate, scores_again
from oar_lightning.lab.gradients import Quality
from oar_lightning.lab.kept import KeptContinuations
from oar_lightning.lab.measures import measures_of
from oar_lightning.lab.reliability import Reliability, reliability, with_ceilings
from oar_lightning.lab.store import Store
from oar_lightning.lab.truth import Source, around_free, monte_carlo
from oar_lightning.lab.types import Curve, Estimate, Findings, Measure, Studied, Truth
from oar_lightning.lab.values import Sampler, Spent
from oar_lightning.objective.loss import LossConfig
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
    loss: LossConfig = LossConfig()
    estimates: list[Estimate] = field(default_factory=list)
    truths: list[Truth] = field(default_factory=list)
    spent: Spent = Spent(0, 0)
    measures: list[Measure] = field(default_factory=list)
    curves: list[Curve] = field(default_factory=list)
    gradients: Quality = field(default_factory=dict)
    failed: list[str] = field(default_factory=list)
    """What was asked for and could not be measured: the error of each."""

    def run(self) -> bool:
        """Ask all estimators and all sources; False where that was interrupted, and a part of the answers is there."""
        if unread := int((~self.studied.rollouts.reasoning_mask.any(1)).sum()):
            log.warning(
                "lab: %d of %d completions have no text before an answer that is found; they count for nothing below. "
                "answer.no_span=last_token reads those without an answer, with their last token in its place",
                unread,
                len(self.studied.ids),
            )
        try:
            self._estimate()
        except KeyboardInterrupt:
            self._locate()
            return False
        self._locate()
        return (not self.config.continuations or self._sample()) and self._examine()

    def _estimate(self) -> None:
        with counted_progress("estimators", "of them", len(self.estimators)) as advance:
            for estimator in self.estimators:
                try:
                    self.estimates.append(estimate(estimator, self.model, self.studied))
                except ValueError as error:
                    raise ValueError(f"lab.estimators.{estimator.name}: {error}") from error
                if unusable := int(self.estimates[-1].scores.isnan().any(1).sum()):
                    log.warning("lab.estimators.%s: left out %d completions, whose scores are NaN", estimator.name, unusable)
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
        config = self.config.values(self.seed)
        sampler = Sampler(self._kept, config)
        with counted_progress(
            "values", "batches of continuations", sampler.batches(self.studied.rollouts, prefixes)
        ) as advance:
            rewards, self.spent, whole = sampler(self.model, self.studied.rollouts, prefixes, advance)
        truth = monte_carlo(self.studied, rewards, self.config.decisive, config.everywhere)
        if bool(truth.known.any()):
            self.truths.append(truth)
        else:
            log.warning("lab: no completion has values (none has a gold answer and free tokens, or lab.budget is too small)")
        return whole

    def _examine(self) -> bool:
        """Measure what the config asks for beside agreement; False where that was interrupted."""
        config = self.config
        parts = [
            part
            for part, wanted in (
                (self._remove, config.faithfulness),
                (self._run_again, config.stability),
                (self._differentiate, config.gradients),
            )
            if wanted is not None
        ]
        try:
            with counted_progress("measures", "kinds", len(parts)) as advance:
                for part in parts:
                    try:
                        part()
                    except Exception as error:  # what else was measured is not lost with it
                        told = str(error) if isinstance(error, ValueError) else named_line(error)
                        log.error("lab: %s", told, exc_info=not isinstance(error, ValueError))
                        self.failed.append(told)
                    advance(1)
        except KeyboardInterrupt:
            return False
        return True

    def _remove(self) -> None:
        assert self.config.faithfulness is not None
        found = self.config.faithfulness(self.model, self.studied, self.estimates, self._kept, self.store, self.seed)
        self.measures += found.measures
        self.curves += found.curves

    def _run_again(self) -> None:
        assert self.config.stability is not None
        part = first_completions(self.studied, self.config.stability.completions)
        again = {e.name: scores_again(e, part) for e in self.estimators}
        measures, curves = self.config.stability(self.model, part.rollouts, again, self.seed)
        self.measures += [filled(measure, len(self.studied.ids)) for measure in measures]
        self.curves += curves

    def _differentiate(self) -> None:
        assert self.config.gradients is not None
        self.gradients = self.config.gradients(self.model, self.studied, self.estimates, self.truths, self.loss)

    @property
    def _kept(self) -> KeptContinuations:
        return KeptContinuations(self.continuer, self.store, self.continuer.sampling.max_new_tokens)

    def reliability(self, truth: Truth) -> Reliability | None:
        return reliability(truth, self.studied, self.config.decisive)

    def findings(self) -> Findings:
        """What is known so far."""
        measures: list[Measure] = []
        for truth in self.truths:
            found = measures_of(truth, self.estimates, self.studied)
            measures += with_ceilings(found, truth, self.reliability(truth), self.estimates, self.studied)
        measures += self.measures
        return Findings(
            self.studied, tuple(self.truths), tuple(self.estimates), tuple(measures), tuple(self.curves), self.gradients
        )


def first_completions(studied: Studied, most: int) -> Studied:
    """The completions of the first problems, at most so many but at least one problem's."""
    ends = [i for i in range(1, len(studied.ids) + 1) if i == len(studied.ids) or studied.problem[i] != studied.problem[i - 1]]
    count = max((end for end in ends if end <= most), default=ends[0])
    rows = torch.arange(count, device=studied.free.device)
    columns = studied.rollouts.columns(rows)
    return Studied(
        studied.rollouts.select(rows),
        studied.problem[:count],
        studied.ids[:count],
        studied.correct[:count],
        *(values[rows, columns] for values in (studied.probabilities, studied.entropy, studied.free)),
    )


def filled(measure: Measure, count: int) -> Measure:
    """A measure of the first completions, NaN for the others of `count`."""
    values = {name: (*own, *[math.nan] * (count - len(own))) for name, own in measure.values.items()}
    return dataclasses.replace(measure, values=values)
