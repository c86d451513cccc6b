"""Rules that drop training problems, `problem -> reason or None`, for `ProblemStream`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from oar_lightning.data.decontamination import Contamination
from oar_lightning.data.prompts import PromptTemplate
from oar_lightning.data.stream import Keep
from oar_lightning.types import MathProblem


@dataclass(frozen=True)
class PromptLength:
    """Drops problems whose rendered prompt, encoded as for rollouts, has more than `limit` tokens."""

    prompt: PromptTemplate
    tokenizer: Any
    limit: int

    def __post_init__(self) -> None:
        if self.limit < 1:
            raise ValueError(f"data.max_prompt_tokens must be >= 1, or null for no limit, got {self.limit}")

    def __call__(self, problem: MathProblem) -> str | None:
        ids = self.tokenizer(self.prompt.render(problem), add_special_tokens=False).input_ids
        return "prompt too long" if len(ids) > self.limit else None


@dataclass(frozen=True)
class Decontamination:
    """Drops problems that are also in an evaluation set."""

    contamination: Contamination

    def __call__(self, problem: MathProblem) -> str | None:
        reason = self.contamination.reason(problem)
        return None if reason is None else f"contaminated {reason}"


@dataclass(frozen=True)
class AnyOf:
    """Drops what any of the rules drops, with the reason of the first one that does."""

    rules: tuple[Keep, ...]

    def __call__(self, problem: MathProblem) -> str | None:
        return next((reason for rule in self.rules if (reason := rule(problem)) is not None), None)
