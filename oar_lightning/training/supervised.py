"""Warm start: supervised training on worked solutions (maximum likelihood of the solution given the prompt)."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from oar_lightning.common.config_check import ConfigError
from oar_lightning.common.ranges import PositiveInt, checked
from oar_lightning.data.prompts import PromptTemplate
from oar_lightning.data.stream import ProblemStream
from oar_lightning.distributed.ranks import all_gather, per_rank, world_size
from oar_lightning.distributed.strategies import adapt
from oar_lightning.objective.metric_sums import MetricSums
from oar_lightning.policy.language_model import positions_of
from oar_lightning.policy.lm_head import token_logprobs
from oar_lightning.policy.pretrained import Policy
from oar_lightning.training.datamodule import data_metrics
from oar_lightning.training.policy_module import PolicyModule
from oar_lightning.training.precision import float32_by_default
from oar_lightning.training.publish import publish
from oar_lightning.training.schedule import Schedule
from oar_lightning.types import MathProblem

log = logging.getLogger(__name__)

MOST_SILENT_STEPS = 10
"""First steps of which no demonstration fits, after which training is given up."""


@checked("supervised")
@dataclass(frozen=True)
class SupervisedConfig:
    """How demonstrations are batched.

    Args:
        batch_size: demonstrations per optimizer step, those of all ranks together.
        max_tokens: longer ones (prompt + solution + EOS) are left out and counted in `too_long_frac`, as are those of more
            tokens than the policy can read.
        tokenizer_problems: problems whose texts a fresh policy's tokenizer is trained on.
    """

    batch_size: PositiveInt = 128
    max_tokens: PositiveInt = 512
    tokenizer_problems: PositiveInt = 5000

    @property
    def microbatches(self) -> int:
        return 1

    def check(self, world_size: int) -> None:
        """Raises: ValueError: where a batch cannot be divided evenly among so many ranks."""
        per_rank("supervised.batch_size", self.batch_size, world_size)

    def loader(self, stream: ProblemStream, steps: int) -> BatchLoader:
        return BatchLoader(stream, self.batch_size, steps)


class BatchLoader:
    """Batches of problems from a stream; sized and stateful like `SlotLoader`."""

    def __init__(self, stream: ProblemStream, batch_size: int, steps: int) -> None:
        self.stream = stream
        self.batch_size = per_rank("supervised.batch_size", batch_size, stream.world_size)
        self.steps = steps

    def __len__(self) -> int:
        return self.steps

    def __iter__(self) -> Iterator[list[MathProblem]]:
        while True:
            yield self.stream.take(self.batch_size)

    def state_dict(self) -> dict[str, Any]:
        return {"stream": self.stream.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.stream.load_state_dict(state["stream"])


class SupervisedWarmStart(PolicyModule):
    """Cross-entropy on the solution's tokens and EOS, averaged over the tokens of the batch."""

    memory_bounds = (
        "a rank's share of supervised.batch_size is read in one pass, each text of up to supervised.max_tokens; lower one"
    )

    def __init__(
        self,
        policy: Policy,
        prompt: PromptTemplate,
        config: SupervisedConfig,
        optimizer: Callable[..., torch.optim.Optimizer],
        schedule: Schedule,
    ) -> None:
        super().__init__(policy, optimizer, schedule)
        self.prompt = prompt
        self.config = config
        self._longest = min(config.max_tokens, positions_of(policy.model) or config.max_tokens)
        self._tokens = 0
        self._silent_steps: int | None = 0  # since training began; None once a demonstration has fitted
        self._warned = False

    @float32_by_default()
    def training_step(self, batch: list[MathProblem], batch_idx: int) -> Tensor | None:
        encoded = [self.encode(problem) for problem in batch]
        kept = [(p, s) for p, s in encoded if len(p) + len(s) <= self._longest]
        sums = MetricSums()
        sums.add({"too_long_frac": (float(len(batch) - len(kept)), float(len(batch)))})
        self._tokens = sum(all_gather(sum(len(s) for _, s in kept)))
        self._count_too_long([len(p) + len(s) for p, s in encoded])
        loss = None
        # all ranks have to make a pass; one whose demonstrations are all too long makes it over two tokens, with weight 0
        always = world_size() > 1 or adapt(self.trainer).needs_each_loss
        rows = kept or ([(encoded[0][0][:1], encoded[0][1][:1])] if always else [])
        if rows:
            ids, attention, solution = pad_right(rows, self.tokenizer.pad_token_id, self.device)
            logprobs, entropy = token_logprobs(self.model, ids, attention, solution)
            weight = 1.0 / self._tokens if kept else 0.0
            loss = -logprobs.sum() * weight * world_size()  # undoes the average over ranks
            if kept:
                count = float(solution.sum())
                sums.add({"loss": (-float(logprobs.detach().sum()), count), "entropy": (float(entropy.detach().sum()), count)})
        metrics = MetricSums().merge(all_gather(sums)).means() | data_metrics(self.trainer)
        metrics["learning_rate"] = self.trainer.optimizers[0].param_groups[0]["lr"]
        publish(self.trainer, metrics, self.trainer.global_step + 1)  # the optimizer step that this is the loss of
        if "loss" in metrics:
            self.log("loss", metrics["loss"], prog_bar=True, logger=False, batch_size=1)
        return loss

    def on_before_optimizer_step(self, optimizer: torch.optim.Optimizer) -> None:
        if not self._tokens:
            self.zero_grad()  # no rank has anything to learn, so the optimizer shall move nothing
        adapt(self.trainer).skip_step(not self._tokens)

    def on_train_start(self) -> None:
        super().on_train_start()
        self._silent_steps = None if self.trainer.global_step else 0  # a run that goes on has begun to learn

    def _count_too_long(self, lengths: Sequence[int]) -> None:
        """Tell of the first demonstrations that are left out.

        Raises:
            ConfigError: where none has fitted since training began.
        """
        too_long = sum(length > self._longest for length in lengths)
        if too_long and not self._warned:
            self._warned = True
            log.warning(
                "%s: %d of this step's %d demonstrations on this rank are longer and left out, as others will be "
                "(too_long_frac)",
                self._limit,
                too_long,
                len(lengths),
            )
        if self._tokens:
            self._silent_steps = None
        elif self._silent_steps is not None:
            self._silent_steps += 1
            if self._silent_steps == MOST_SILENT_STEPS or self.trainer.global_step + 1 == self.trainer.max_steps:
                raise ConfigError(
                    f"{self._limit}: no demonstration of the first {self._silent_steps} steps fits, so that nothing was "
                    f"learnt; the shortest of the last one has {min(lengths)} tokens with its prompt: raise "
                    "supervised.max_tokens, take a policy that reads longer texts, or name other data"
                )

    @property
    def _limit(self) -> str:
        asked = f"supervised.max_tokens={self.config.max_tokens}"
        return asked if self._longest == self.config.max_tokens else f"{asked}, and the policy reads {self._longest} tokens"

    def encode(self, problem: MathProblem) -> tuple[list[int], list[int]]:
        """Ids of the prompt and of the solution with EOS, encoded separately as those of a rollout are."""
        if not problem.solution:
            raise ValueError(f"problem {problem.id} has no solution to learn from; warm_start needs data.train.solution_column")
        prompt = self.tokenizer(self.prompt.render(problem), add_special_tokens=False).input_ids
        solution = self.tokenizer(problem.solution, add_special_tokens=False).input_ids
        return prompt, [*solution, self.tokenizer.eos_token_id]


def pad_right(rows: list[tuple[list[int], list[int]]], pad: int, device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
    """Ids, attention mask and solution mask, each [B S], of rows of (prompt, solution)."""
    width = max(len(p) + len(s) for p, s in rows)
    ids = torch.tensor([[*p, *s, *[pad] * (width - len(p) - len(s))] for p, s in rows], device=device)
    column = torch.arange(width, device=device)
    start = torch.tensor([[len(p)] for p, _ in rows], device=device)
    end = torch.tensor([[len(p) + len(s)] for p, s in rows], device=device)
    return ids, column < end, (column >= start) & (column < end)
