"""`chain`: generated multi-step word problems whose outcome-bearing tokens are known.

A running total starts at a small number and goes through a few additions and subtractions; it never leaves
``0..max_total``. A worked solution restates each step as ``a+b=c`` between interchangeable filler and ends in
``\\boxed{c}``. The numbers and operators of a solution are causal for its answer, the filler is not; the generator
knows which is which and says so (`Solution.causal_spans`).
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Annotated, Literal, NamedTuple

from annotated_types import Interval

from oar_lightning.common.ranges import Fraction, NonNegativeInt, PositiveInt, ProperFraction, Rule, checked
from oar_lightning.data.chain.problem import GAINS, ITEMS, LOSSES, NAMES, SEPARATOR, ChainProblem, Companion, Form
from oar_lightning.data.generated import OPENERS, GeneratedProblems, HintKind, Solution, SolutionText, draw_of_split

PHRASES = ("we get", "we have", "that gives", "this makes", "there are", "we see")
CLOSERS = ("in total", "by now", "at this point", "all in all", "as we see", "for now")


@checked(
    "data.chain",
    Rule(
        lambda min_steps, max_steps: min_steps <= max_steps,
        "data.chain.min_steps must be in [1, max_steps], got {min_steps} with max_steps={max_steps}",
    ),
    Rule(
        lambda max_delta, max_total: max_delta <= max_total,
        "data.chain.max_delta must be in [1, max_total], got {max_delta} with max_total={max_total}",
    ),
    Rule(
        lambda tell_form, restate, asides_last: tell_form or "either" not in (restate, asides_last),
        "data.chain.restate={restate}, asides_last={asides_last}: where a form is drawn for each problem, its question must "
        "tell it; set data.chain.tell_form=true",
    ),
    Rule(
        lambda ask, companion: ask == "last" or companion == "none",
        "data.chain.ask={ask} asks for the totals of one person, got companion={companion}; set one of them to its default",
    ),
)
@dataclass(frozen=True)
class ChainTask:
    """The distribution of problems and of worked solutions.

    Args:
        min_steps: fewest operations of a problem.
        max_steps: most operations of a problem; the number of operations is its difficulty.
        max_total: the running total stays in ``0..max_total``.
        max_delta: operands are in ``1..max_delta``.
        filler: interchangeable phrases per step, 0 to 3.
        asides: sentences per step that do not concern the answer, each of four freely chosen words.
        asides_last: whether all asides follow the last step, so that all decisions are made early; else each step's asides
            follow that step.
        restate: whether a step repeats its first operand (``7+4=11``) or leaves it out (``+4=11``).
        companion: a second person with as many steps. The question does not ask for that person's result (`distracts`), or
            asks for the sum of both results, which only the final answer states (`counts`); `none`: one person.
        ask: what the question asks for: the total after the last step, or after `each` step, an answer of several numbers.
        noise: probability that a step of a demonstration states a result that is off by one.
        hints: share of the training problems whose question tells of the answer that their solution reaches, right or wrong;
            for warm start. A policy that learns from them reads hints.
        hint: how they tell it: the answer, another solution that reaches it, as feedback another solution's answer that it is
            not, or any of these.
    """

    name = "chain"

    min_steps: PositiveInt = 2
    max_steps: int = 4
    max_total: int = 20
    max_delta: PositiveInt = 9
    filler: Annotated[int, Interval(ge=0, le=3), "a number of phrases per step"] = 2
    asides: Annotated[NonNegativeInt, "a number of sentences per step"] = 0
    asides_last: bool | Literal["either"] = False
    restate: bool | Literal["either"] = True
    tell_form: bool = False
    companion: Literal["none", "distracts", "counts"] = "none"
    ask: Literal["last", "each"] = "last"
    noise: Annotated[ProperFraction, "a probability"] = 0.4
    hints: Annotated[Fraction, "a share of the problems"] = 0.0
    hint: HintKind | Literal["any"] = "answer"

    def problem(self, rng: random.Random, held_out: bool) -> ChainProblem:
        """Draw a problem of the training or the held-out split.

        Raises:
            ValueError: where the task has so few problems that the split seems to be empty.
        """
        settings = f"data.chain.max_total={self.max_total}, max_delta={self.max_delta} and max_steps={self.max_steps}"
        return draw_of_split(lambda: self._draw(rng), held_out, settings)

    def _draw(self, rng: random.Random) -> ChainProblem:
        start = rng.randint(1, self.max_total)
        deltas = self._deltas(start, rng.randint(self.min_steps, self.max_steps), rng)
        name, item = rng.choice(NAMES), rng.choice(ITEMS)
        verbs, companion = _verbs(deltas, rng), self._companion(name, len(deltas), rng)
        form = Form(_drawn(self.restate, rng), _drawn(self.asides_last, rng), self.tell_form)
        return ChainProblem(name, item, start, deltas, verbs, companion, form, self.ask == "each")

    def _deltas(self, start: int, steps: int, rng: random.Random) -> tuple[int, ...]:
        total, deltas = start, []
        for _ in range(steps):
            operands = [d for d in range(-self.max_delta, self.max_delta + 1) if d]
            deltas.append(rng.choice([d for d in operands if 0 <= total + d <= self.max_total]))
            total += deltas[-1]
        return tuple(deltas)

    def _companion(self, name: str, steps: int, rng: random.Random) -> Companion | None:
        if self.companion == "none":
            return None
        other = rng.choice([n for n in NAMES if n != name])
        start = rng.randint(1, self.max_total)
        deltas = self._deltas(start, steps, rng)
        return Companion(other, start, deltas, _verbs(deltas, rng), counts=self.companion == "counts")

    def solution(self, problem: ChainProblem, rng: random.Random, noise: float | None = None) -> Solution:
        """Write a worked solution; each step's result is off by one with probability `noise` (default: the task's).

        Later steps start from the wrong result, so that one error usually makes a wrong answer.
        """
        noise = self.noise if noise is None else noise
        other = problem.companion
        people = [_Person("" if other is None else f"{problem.name}: ", problem.start, problem.deltas, True)]
        if other is not None:
            people.append(_Person(f"{other.name}: ", other.start, other.deltas, other.counts))
        totals = [person.start for person in people]
        parts, late_asides, stated = SolutionText(), "", []
        for step in range(len(problem.deltas)):
            for i, person in enumerate(people):
                totals[i] = self._step(parts, person, step, totals[i], problem, noise, rng)
            stated.append(totals[0])
            asides = "".join(_aside(rng) for _ in range(self.asides))
            if problem.form.asides_last:
                late_asides += asides
            else:
                parts.filler(asides)
        last = sum(total for total, person in zip(totals, people, strict=True) if person.causal)
        parts.filler(f"{late_asides}The answer is \\boxed{{")
        for number, total in enumerate(stated if problem.each else [last]):
            parts.filler(SEPARATOR if number else "").causal(str(total))
        parts.filler("}.")
        return parts.finish()

    def _step(
        self,
        parts: SolutionText,
        person: _Person,
        step: int,
        total: int,
        problem: ChainProblem,
        noise: float,
        rng: random.Random,
    ) -> int:
        """Write one step of one person's account; returns the result that the step states."""
        delta, later = person.deltas[step], person.deltas[step + 1 :]
        result = self._noisy(total + delta, later, rng) if rng.random() < noise else total + delta
        if self.filler >= 1:
            parts.filler(f"{rng.choice(OPENERS)} ")
        if self.filler >= 2:
            parts.filler(f"{rng.choice(PHRASES)} ")
        parts.filler(person.label)
        number = parts.causal if person.causal else parts.filler
        if problem.form.restate or step == 0:
            number(str(total))
        number("+" if delta > 0 else "-")
        number(str(abs(delta)))
        parts.filler("=")
        number(str(result))
        parts.filler(f" {problem.item}")
        if self.filler >= 3:
            parts.filler(f" {rng.choice(CLOSERS)}")
        parts.filler(".\n")
        return result

    def _noisy(self, result: int, later: tuple[int, ...], rng: random.Random) -> int:
        """`result` off by one such that the remaining operations stay in range; unchanged where that is impossible."""
        candidates = []
        for wrong in (result - 1, result + 1):
            path = [wrong + sum(later[:i]) for i in range(len(later) + 1)]
            if all(0 <= value <= self.max_total for value in path):
                candidates.append(wrong)
        return rng.choice(candidates) if candidates else result


class _Person(NamedTuple):
    """One person's account in a solution: the label before the numbers of each line, and whether these numbers are causal."""

    label: str
    start: int
    deltas: tuple[int, ...]
    causal: bool


def _drawn(wanted: bool | Literal["either"], rng: random.Random) -> bool:
    """What is wanted; where that is `either`, a draw. Nothing else draws, so that problems of a seed stay what they are."""
    return rng.random() < 0.5 if wanted == "either" else bool(wanted)


def _verbs(deltas: tuple[int, ...], rng: random.Random) -> tuple[str, ...]:
    return tuple(rng.choice(GAINS if delta > 0 else LOSSES) for delta in deltas)


def _aside(rng: random.Random) -> str:
    """A sentence without numbers, made of the task's own words."""
    return f"{rng.choice(OPENERS)} {rng.choice(NAMES)} {rng.choice((*GAINS, *LOSSES))} {rng.choice(ITEMS)}.\n"


@checked("")
@dataclass(frozen=True)
class ChainProblems(GeneratedProblems):
    """The stream of `chain` problems."""

    task: ChainTask
