"""Evaluation before, during and after training, with its tables and heat-maps."""

from __future__ import annotations

import dataclasses
import logging
import time
from collections.abc import Mapping, Sequence
from typing import Any

import lightning as L
import torch

from oar_lightning.common.activity import activity
from oar_lightning.credit.predictions import predictions
from oar_lightning.distributed.ranks import all_gather, alone, interleaved, rank, world_size
from oar_lightning.distributed.strategies import adapt
from oar_lightning.evaluation.evaluate import EvaluationConfig, evaluate
from oar_lightning.evaluation.metrics import evaluation_metrics, metric_names
from oar_lightning.evaluation.result import ProblemResult, completions_table
from oar_lightning.inspection.heatmap import render_heatmap
from oar_lightning.inspection.token_credit import heatmap_completions
from oar_lightning.policy.language_model import evaluating
from oar_lightning.policy.token_budget import unset_budget
from oar_lightning.rollout import RolloutStage, SamplingConfig
from oar_lightning.tracking.tracker import Tracker
from oar_lightning.training.callbacks.stop import GracefulStop
from oar_lightning.training.module import PolicyOptimization
from oar_lightning.training.precision import precision_of
from oar_lightning.training.publish import offer
from oar_lightning.types import MathProblem, Rollouts

log = logging.getLogger(__name__)


class EvaluationCallback(L.Callback):
    """Runs `evaluate` on each evaluation set at step 0, every n steps and at the end, where a run ends early, too.

    Each of n ranks evaluates every n-th problem; all ranks get all results.
    `history` holds (step, evaluation set, metrics) in order, also across a resume; checkpoints call the set "benchmark".
    """

    def __init__(
        self,
        eval_sets: Mapping[str, Sequence[MathProblem]],
        stage: RolloutStage,
        sampling: SamplingConfig,
        config: EvaluationConfig,
        tracker: Tracker,
    ) -> None:
        self.eval_sets = eval_sets
        self.stage = stage
        self.sampling = sampling
        self.config = config
        self.tracker = tracker
        self.history: list[dict[str, Any]] = []
        self._seconds = 0.0  # of the last evaluation of this process

    def on_train_epoch_start(self, trainer: L.Trainer, module: L.LightningModule) -> None:
        # not in on_train_start: by now all callbacks are ready, so that a signal is handled
        if not self.history:
            self._run(trainer, module)

    def on_train_batch_start(self, trainer: L.Trainer, module: L.LightningModule, *_: Any) -> None:
        if not self.history:  # a run that begins with the state of another one is in the middle of an epoch
            self._run(trainer, module)

    def on_train_batch_end(self, trainer: L.Trainer, module: L.LightningModule, *_: Any) -> None:
        step, every = trainer.global_step, self.config.every_n_steps
        due = step == trainer.max_steps or (every and step % every == 0)
        if due and step != self.history[-1]["step"]:
            self._run(trainer, module)

    def on_train_end(self, trainer: L.Trainer, module: L.LightningModule) -> None:
        """A run that another callback ended before its last step is finished, and one that a signal has stopped goes on."""
        signalled = any(isinstance(c, GracefulStop) and c.received is not None for c in trainer.callbacks)
        if not signalled and self.history and trainer.global_step != self.history[-1]["step"]:
            log.warning("a callback has ended training at step %d of %d", trainer.global_step, trainer.max_steps)
            self._run(trainer, module)

    def state_dict(self) -> dict[str, Any]:
        return {"history": self.history}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.history = list(state["history"])

    def first_and_last(self, eval_set: str) -> tuple[dict[str, float], dict[str, float]]:
        rows = [row["metrics"] for row in self.history if row["benchmark"] == eval_set]
        return rows[0], rows[-1]

    def accuracies(self) -> tuple[float, float]:
        """The sampled accuracy on the first evaluation set, before training and last."""
        before, now = self.first_and_last(next(iter(self.eval_sets)))
        return before[self.accuracy], now[self.accuracy]

    def metric_names(self) -> list[str]:
        """``eval/<evaluation set>/<metric>``, the sampled accuracy on the first set first."""
        names = metric_names(self.config.samples, self.config.greedy)
        return [f"eval/{eval_set}/{name}" for eval_set in self.eval_sets for name in names]

    def value(self, name: str, step: int) -> float | None:
        """A metric of the evaluation at a step; None where there was none."""
        rows = [row for row in self.history if row["step"] == step]
        found = {f"eval/{row['benchmark']}/{metric}": value for row in rows for metric, value in row["metrics"].items()}
        return float(found[name]) if name in found else None

    @property
    def accuracy(self) -> str:
        """The metric of the sampled accuracy."""
        return f"avg_at_{self.config.samples}"

    def seconds_left(self, step: int, last_step: int) -> float:
        """How long the evaluations after `step` will take, if each takes as long as the last one took."""
        every = self.config.every_n_steps
        middle = 0 if not every else (last_step - 1) // every - step // every
        return self._seconds * (middle + (step < last_step))

    def _run(self, trainer: L.Trainer, module: L.LightningModule) -> None:
        started = time.monotonic()
        self._evaluate(trainer, module)
        self._seconds = time.monotonic() - started

    def _evaluate(self, trainer: L.Trainer, module: L.LightningModule) -> None:
        step = trainer.global_step
        for name, problems in self.eval_sets.items():
            mine = range(len(problems))[rank() :: world_size()]
            results: list[ProblemResult] = []
            terms: list[torch.Tensor] = []
            group: tuple[int, Rollouts] | None = None
            with adapt(trainer).gathered_parameters(), precision_of(trainer):
                self.stage.start(module.model, self.sampling)  # a small evaluation set may leave a rank without a problem
                own = [problems[i] for i in mine]
                with activity(f"evaluation of {name}", len(own)) as advance:
                    for batch in evaluate(module.model, self.stage, own, self.sampling, self.config, step, places=mine):
                        group = _group_to_show(group, results, batch.results, batch.rollouts)
                        results += batch.results
                        terms += batch.rollouts.reward_terms.cpu().split(self.config.samples)
                        advance(len(batch.results))
                results, terms = interleaved(all_gather(results)), interleaved(all_gather(terms))
                metrics = evaluation_metrics(results)
                self.history.append({"step": step, "benchmark": name, "metrics": metrics})
                named = {f"eval/{name}/{k}": v for k, v in metrics.items()}
                self.tracker.write_metrics(named, step)
                offer(trainer, named)
                advantages = self._advantages(module, torch.cat(terms))
                self.tracker.write_table(f"completions/{name}_step_{step:06d}.json", completions_table(results, advantages))
                shows = self.config.heatmap and rank() == 0
                if shows and isinstance(module, PolicyOptimization) and group is not None and _readable(module, group[1], name):
                    place, rollouts = mine[group[0]], group[1]
                    shown = advantages[place] if advantages else [0.0] * self.config.samples
                    rollouts = dataclasses.replace(rollouts, step=_last_rollout(module, step))
                    page = heatmap_page(module, rollouts, results[place], shown, f"{name}, step {step}")
                    self.tracker.write_text(f"heatmaps/{name}_step_{step:06d}.html", page)

    def _advantages(self, module: L.LightningModule, reward_terms: torch.Tensor) -> list[list[float]] | None:
        """The advantages of each problem's samples; None for single samples, and for a module without advantages."""
        size = self.config.samples
        if size < 2 or not isinstance(module, PolicyOptimization):
            return None
        return module.collector.advantages(reward_terms, size).view(-1, size).tolist()


def _readable(module: PolicyOptimization, rollouts: Rollouts, name: str) -> bool:
    """Whether the scorer knows the task of the problem that would be shown; it is told where it does not."""
    try:
        module.method.scorer.check_problem(rollouts.problems[0])
    except ValueError as error:
        log.warning("no heat-map of evaluation set %s: %s", name, error)
        return False
    return True


def _group_to_show(
    found: tuple[int, Rollouts] | None, before: Sequence[ProblemResult], results: Sequence[ProblemResult], rollouts: Rollouts
) -> tuple[int, Rollouts]:
    """Place and completions of the first problem that has both correct and incorrect ones; else of the first problem."""
    if found is not None and _is_mixed(before[found[0]]):
        return found
    mixed = next((i for i, result in enumerate(results) if _is_mixed(result)), None)
    if mixed is None and found is not None:
        return found
    place, size = mixed or 0, rollouts.group_size
    rows = torch.arange(place * size, (place + 1) * size, device=rollouts.token_ids.device)
    return len(before) + place, rollouts.select(rows)


def _is_mixed(result: ProblemResult) -> bool:
    return len(set(result.correct)) > 1


def _last_rollout(module: PolicyOptimization, step: int) -> int:
    """The rollout step that the policy has learnt from last; 0 before the first. Scorers go by it."""
    return max(0, step - 1) // module.method.update.steps_per_rollout


def heatmap_page(
    module: PolicyOptimization, rollouts: Rollouts, result: ProblemResult, advantages: Sequence[float], title: str
) -> str:
    """A page with the credit of one group. It is scored whatever its advantages, so that a group without signal shows too."""
    known = torch.tensor(advantages, device=rollouts.token_ids.device)
    with alone(), module.method.scorer.looked_at():
        credit = module.collector.assign_credit(dataclasses.replace(rollouts, advantages=known), everything=True)
    with evaluating(module.model), torch.no_grad():
        budget = unset_budget("evaluation.heatmap")
        entropy = predictions(module.model, rollouts, rollouts.response_mask, budget).entropy
    correct = [bool(c) for c in result.correct]
    completions = heatmap_completions(rollouts, module.collector.stage.token_bytes, credit, entropy, advantages, correct)
    scorer = type(module.method.scorer).__name__
    return render_heatmap(f"{scorer} on {title}", result.question, result.gold, completions)
