"""How a batch of rollouts is divided into optimizer steps and slots, and the loader that yields the slots."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from annotated_types import Interval

from oar_lightning.common.ranges import PositiveInt, Rule, checked
from oar_lightning.data.stream import ProblemStream
from oar_lightning.distributed.ranks import per_rank
from oar_lightning.policy.token_budget import TokenBudget, Tokens, as_budget
from oar_lightning.types import MathProblem


@checked(
    "update",
    Rule(
        lambda minibatches, problems, group_size: minibatches <= problems * group_size,
        "update.minibatches={minibatches} is more than the completions of a batch of rollouts (update.problems={problems} "
        "times update.group_size={group_size}); lower it",
    ),
)
@dataclass(frozen=True)
class UpdatePlan:
    """How many optimizer steps a batch of rollouts is used for, and how many micro-batches each has.

    Args:
        problems: problems per batch of rollouts, those of all ranks together.
        group_size: completions per problem.
        inner_epochs: how often a batch of rollouts is used (mu in 2402.03300).
        minibatches: optimizer steps per inner epoch.
        microbatches: micro-batches per optimizer step at most; bounds memory, does not change the gradient but by rounding.
        token_budget: padded tokens of one pass, and of prompts that are run once for the step. As few micro-batches are made as
            stay within it; where `microbatches` are too few for that, their sizes are even (and `update/microbatch_tokens`
            exceeds the budget). None: always `microbatches`. `auto`: halved where memory runs out; a micro-batch above it then
            takes several passes.
        compile: `torch.compile` the decoder of the update's passes; the first step then takes half a minute or more.
        dtype: of the products of the passes whose log-probabilities the loss reads, by autocast: the update's, and those of the
            old and the reference policy. Sampling and scoring keep theirs. None: that of the trainer's `precision`; `float32`
            says so of 32-true, as sweeps do, which cannot choose None.
    """

    problems: PositiveInt = 32
    group_size: Annotated[int, Interval(ge=2), "the number of completions that are compared"] = 8
    inner_epochs: PositiveInt = 1
    minibatches: PositiveInt = 1
    microbatches: PositiveInt = 1
    token_budget: TokenBudget | Tokens = None
    compile: bool = False
    dtype: Literal["float32", "bfloat16"] | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "token_budget", as_budget("update.token_budget", self.token_budget))

    @property
    def budget(self) -> TokenBudget:
        assert isinstance(self.token_budget, TokenBudget)
        return self.token_budget

    @property
    def half(self) -> bool:
        """Whether autocast is to change what the update computes in."""
        return self.dtype == "bfloat16"

    @property
    def steps_per_rollout(self) -> int:
        return self.inner_epochs * self.minibatches

    @property
    def slots_per_rollout(self) -> int:
        return self.steps_per_rollout * self.microbatches

    def check(self, world_size: int) -> None:
        """Raises: ValueError: where the problems cannot be divided evenly among so many ranks."""
        per_rank("update.problems", self.problems, world_size)

    def loader(self, stream: ProblemStream, steps: int) -> SlotLoader:
        return SlotLoader(stream, self, steps)


@dataclass(frozen=True)
class Slot:
    """One loader item: one call of `training_step`, which makes one micro-batch.

    ``problems`` is filled in the first slot of a batch of rollouts and empty in the others. ``progress`` is the fraction of the
    run's steps that are done before the batch.
    """

    problems: tuple[MathProblem, ...]
    rollout: int
    inner_epoch: int
    minibatch: int
    microbatch: int
    progress: float = 0.0

    @property
    def first(self) -> bool:
        return self.inner_epoch == self.minibatch == self.microbatch == 0


class SlotLoader:
    """Yields the slots of `steps` optimizer steps; its state has plain types.

    It has a length, since otherwise Lightning prefetches one item and the saved position is one too far.
    """

    def __init__(self, stream: ProblemStream, plan: UpdatePlan, steps: int) -> None:
        self.stream = stream
        self.plan = plan
        self.steps = steps
        self.problems = per_rank("update.problems", plan.problems, stream.world_size)
        self.position = 0

    def __len__(self) -> int:
        return self.steps * self.plan.microbatches

    def __iter__(self) -> Iterator[Slot]:
        while True:
            rollout, within = divmod(self.position, self.plan.slots_per_rollout)
            step, microbatch = divmod(within, self.plan.microbatches)
            inner_epoch, minibatch = divmod(step, self.plan.minibatches)
            progress = rollout * self.plan.steps_per_rollout / self.steps
            problems = tuple(self.stream.take(self.problems, progress)) if within == 0 else ()
            self.position += 1
            yield Slot(problems, rollout, inner_epoch, minibatch, microbatch, progress)

    def state_dict(self) -> dict[str, Any]:
        return {"position": self.position, "stream": self.stream.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.position = state["position"]
        self.stream.load_state_dict(state["stream"])
