"""Evaluation before, during and after training, with its tables and heat-maps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import lightning as L
import torch

from oar_lightning.answer_span import Region, find_answer, token_regions
from oar_lightning.evaluation import Evaluation, EvaluationConfig, evaluate
from oar_lightning.heatmap import HeatmapCompletion, HeatmapToken, render_heatmap
from oar_lightning.language_model import evaluating, token_logprobs
from oar_lightning.module import PolicyOptimization
from oar_lightning.rollout import RolloutStage, SamplingConfig
from oar_lightning.tracking import Tracker
from oar_lightning.types import MathProblem, Rollouts


class EvaluationCallback(L.Callback):
    """Runs `evaluate` on each benchmark at step 0, every n steps and at the end.

    `history` holds (step, benchmark, metrics) in order, also across a resume.
    """

    def __init__(
        self,
        benchmarks: Mapping[str, Sequence[MathProblem]],
        stage: RolloutStage,
        sampling: SamplingConfig,
        config: EvaluationConfig,
        tracker: Tracker,
    ) -> None:
        self.benchmarks = benchmarks
        self.stage = stage
        self.sampling = sampling
        self.config = config
        self.tracker = tracker
        self.history: list[dict[str, Any]] = []

    def on_train_start(self, trainer: L.Trainer, module: L.LightningModule) -> None:
        if not self.history:
            self._run(trainer, module)

    def on_train_batch_end(self, trainer: L.Trainer, module: L.LightningModule, *_: Any) -> None:
        step, every = trainer.global_step, self.config.every_n_steps
        due = step == trainer.max_steps or (every and step % every == 0)
        if due and step != self.history[-1]["step"]:
            self._run(trainer, module)

    def state_dict(self) -> dict[str, Any]:
        return {"history": self.history}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.history = list(state["history"])

    def first_and_last(self, benchmark: str) -> tuple[dict[str, float], dict[str, float]]:
        rows = [row["metrics"] for row in self.history if row["benchmark"] == benchmark]
        return rows[0], rows[-1]

    def _run(self, trainer: L.Trainer, module: L.LightningModule) -> None:
        step = trainer.global_step
        for name, problems in self.benchmarks.items():
            with trainer.precision_plugin.forward_context():
                result = evaluate(module.model, self.stage, problems, self.sampling, self.config, step)
                metrics = result.metrics()
                self.history.append({"step": step, "benchmark": name, "metrics": metrics})
                self.tracker.write_metrics({f"eval/{name}/{k}": v for k, v in metrics.items()}, step)
                advantages = _advantages(module, result.rollouts)
                self.tracker.write_table(
                    f"completions/{name}_step_{step:06d}.json", completions_table(result.rollouts, advantages)
                )
                if self.config.heatmap and isinstance(module, PolicyOptimization):
                    page = heatmap_page(module, result, advantages, name, step)
                    self.tracker.write_text(f"heatmaps/{name}_step_{step:06d}.html", page)


def _advantages(module: L.LightningModule, rollouts: Rollouts) -> torch.Tensor:
    """Advantages within the evaluation's groups; zeros where a group is a single completion or nothing is optimised."""
    if rollouts.group_size < 2 or not isinstance(module, PolicyOptimization):
        return torch.zeros(len(rollouts), device=rollouts.rewards.device)
    return module.advantages(rollouts)


def completions_table(rollouts: Rollouts, advantages: torch.Tensor) -> dict[str, list[Any]]:
    """Every completion with its prompt, answer, gold, reward and advantage, as columns."""
    return {
        "prompt": [p.question for p in rollouts.problems],
        "completion": list(rollouts.completions),
        "answer": list(rollouts.answers),
        "gold": [p.answer for p in rollouts.problems],
        "reward": [round(r, 6) for r in rollouts.rewards.tolist()],
        "advantage": [round(a, 6) for a in advantages.tolist()],
    }


def heatmap_page(
    module: PolicyOptimization, evaluation: Evaluation, advantages: torch.Tensor, benchmark: str, step: int
) -> str:
    """The credit of one group: the first with correct and incorrect completions, else the first of all."""
    share = evaluation.correct.mean(1)
    mixed = ((share > 0) & (share < 1)).nonzero().flatten()
    group = int(mixed[0]) if len(mixed) else 0
    size = evaluation.rollouts.group_size
    index = torch.arange(group * size, (group + 1) * size, device=advantages.device)
    rollouts = evaluation.rollouts.select(index)
    # scored whatever the advantages, so that a group without signal can be looked at too
    credit = module.assign_credit(rollouts, torch.ones_like(advantages[index]))
    with evaluating(module.model), torch.no_grad():
        entropy = token_logprobs(module.model, rollouts.token_ids, rollouts.attention_mask, rollouts.response_mask)[1]
    completions = []
    for row in range(len(rollouts)):
        columns = rollouts.response_mask[row].nonzero().flatten()
        decoded = module.stage.token_bytes.decode(rollouts.token_ids[row, columns].tolist())
        span = find_answer(decoded.text, module.stage.answer_format, complete=not _truncated(rollouts, row))
        regions = token_regions(decoded.spans, span) if span else [Region.TAIL] * len(columns)
        texts = decoded.pieces()
        advantage = float(advantages[index][row])
        tokens = [
            HeatmapToken(
                text=texts[i] or "·",
                region=regions[i],
                score=float(credit.importance[row, column]),
                weight=float(credit.weights[row, column]),
                advantage=advantage * float(credit.weights[row, column]),
                entropy=float(entropy[row, column]),
            )
            for i, column in enumerate(columns.tolist())
        ]
        completions.append(
            HeatmapCompletion(
                tokens=tokens,
                reward=float(rollouts.rewards[row]),
                advantage=advantage,
                answer=rollouts.answers[row],
                correct=bool(evaluation.correct[group, row] > 0),
            )
        )
    problem = rollouts.problems[0]
    scorer = type(module.method.scorer).__name__
    return render_heatmap(f"{scorer} on {benchmark}, step {step}", problem.question, problem.answer, completions)


def _truncated(rollouts: Rollouts, row: int) -> bool:
    return rollouts.truncated is not None and bool(rollouts.truncated[row])
