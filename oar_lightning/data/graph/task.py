"""`graph`: generated word problems over a dependency graph, in arithmetic modulo a prime (as in iGSM, arXiv 2407.20311).

Some quantities are given, the others are each computed from two; the statements are shuffled, one quantity is asked for, and
some are not needed for it. A worked solution lists what is needed, each quantity after those that it serves, then computes
the list backwards, a line each, and ends in ``\\boxed{}``. The order is free where the graph leaves it free. A demonstration
may be flawed by decisions: a wrong operator, a wrong operand, a needless step. Its sums are right, always.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Annotated, Literal

from annotated_types import Interval

from oar_lightning.common.ranges import Fraction, NonNegativeInt, PositiveInt, ProperFraction, Rule, checked
from oar_lightning.data.generated import OPENERS, GeneratedProblems, HintKind, Solution, SolutionText, draw_of_split
from oar_lightning.data.graph.problem import ITEMS, OPERATORS, Formula, GraphProblem


@checked(
    "data.graph",
    Rule(
        lambda given, depth, width: given + depth * width <= 12,
        "data.graph.given={given}, depth={depth} and width={width} make more quantities than the 12 that have names; "
        "lower one of them",
    ),
    Rule(
        lambda depth, min_steps, max_steps: depth <= min_steps <= max_steps,
        "data.graph.min_steps must be in [depth, max_steps], got {min_steps} with depth={depth} and max_steps={max_steps}",
    ),
    Rule(
        lambda wrong_operator, misconceptions: misconceptions == 0 or wrong_operator < misconceptions,
        "data.graph.wrong_operator={wrong_operator} is more than data.graph.misconceptions={misconceptions} can carry; "
        "make it the smaller, or misconceptions 0",
    ),
)
@dataclass(frozen=True)
class GraphTask:
    """The distribution of problems and of worked solutions.

    Args:
        modulus: a prime below 10; all values are in ``0..modulus-1``.
        given: quantities whose values are given.
        depth: layers of computed quantities. One operand of each is of the layer below, the other of any below.
        width: quantities of a layer; the one asked for is of the last.
        min_steps: fewest computed quantities that the answer needs.
        max_steps: most of them.
        filler: whether the word that begins a step is drawn from six, or always the same.
        asides: lines per step that do not concern the answer, each of four freely chosen names.
        wrong_operator: probability that a step of a demonstration has another operator.
        misconceptions: share of the triples (quantity, first operand, operator) of which there is one, a certain wrong
            operator: all wrong operators are then of these triples, so that a policy learns many errors that it makes often,
            not one that it makes rarely everywhere. 0: a wrong operator is any, of any triple.
        wrong_operand: probability that a step has another operand, of those that are known by then.
        needless: probability that a quantity that is not needed and could be computed is.
        hints: share of the training problems whose question tells of the answer that their solution reaches, right or wrong;
            for warm start. A policy that learns from them reads hints.
        hint: how they tell it: the answer, another solution that reaches it, as feedback another solution's answer that it is
            not, or any of these.
    """

    name = "graph"

    modulus: Annotated[Literal[2, 3, 5, 7], "a prime below 10"] = 5
    given: Annotated[int, Interval(ge=2), "a number of quantities"] = 3
    depth: PositiveInt = 2
    width: PositiveInt = 2
    min_steps: PositiveInt = 2
    max_steps: int = 3
    filler: bool = True
    asides: Annotated[NonNegativeInt, "a number of lines per step"] = 0
    wrong_operator: Annotated[ProperFraction, "a probability"] = 0.15
    misconceptions: Annotated[Fraction, "a share of the triples"] = 0.0
    wrong_operand: Annotated[ProperFraction, "a probability"] = 0.1
    needless: Annotated[ProperFraction, "a probability"] = 0.15
    hints: Annotated[Fraction, "a share of the problems"] = 0.0
    hint: HintKind | Literal["any"] = "answer"

    def problem(self, rng: random.Random, held_out: bool) -> GraphProblem:
        """Draw a problem of the training or the held-out split.

        Raises:
            ValueError: where the task has so few structures that the split seems to be empty.
        """
        settings = (
            f"data.graph.depth={self.depth}, width={self.width}, min_steps={self.min_steps} and max_steps={self.max_steps}"
        )
        return draw_of_split(lambda: self._draw(rng), held_out, settings)

    def _draw(self, rng: random.Random) -> GraphProblem | None:
        names = iter(rng.sample(ITEMS, self.given + self.depth * self.width))
        layer = [next(names) for _ in range(self.given)]
        definitions: dict[str, int | Formula] = {name: rng.randrange(1, self.modulus) for name in layer}
        for _ in range(self.depth):
            below, layer = layer, [next(names) for _ in range(self.width)]
            known = list(definitions)
            for name in layer:
                first = rng.choice(below)
                operands = [first, rng.choice([n for n in known if n != first])]
                rng.shuffle(operands)
                definitions[name] = Formula(operands[0], rng.choice(tuple(OPERATORS)), operands[1])
        asked = rng.choice(layer)
        shuffled = dict(rng.sample(list(definitions.items()), len(definitions)))
        problem = GraphProblem(self.modulus, shuffled, asked)
        return problem if self.min_steps <= problem.steps <= self.max_steps else None

    def solution(self, problem: GraphProblem, rng: random.Random, flaws: float = 1.0) -> Solution:
        """Write a worked solution; `flaws` scales the probabilities of flawed decisions."""
        order = self._order(problem, rng, flaws)
        text = SolutionText().filler(f"Needed: {' '.join(reversed(order))}.\n")
        values = {name: given for name, given in problem.definitions.items() if isinstance(given, int)}
        for name in order:
            left, sign, right = self._decide(name, problem.formulas[name], list(values), rng, flaws)
            result = problem.apply(sign, values[left], values[right])
            piece = text.causal if name in problem.needed else text.filler
            text.filler(f"{rng.choice(OPENERS) if self.filler else OPENERS[0]} {name} is ")
            piece(left).filler(" ")
            piece(sign).filler(" ")
            piece(right)
            for stated, value in ((left, values[left]), (right, values[right]), (name, result)):
                text.filler(f"; {stated}=")
                piece(str(value))
            text.filler(".\n")
            text.filler("".join(_aside(rng) for _ in range(self.asides)))
            values[name] = result
        return text.filler("The answer is \\boxed{").causal(str(values[problem.asked])).filler("}.").finish()

    def _order(self, problem: GraphProblem, rng: random.Random, flaws: float) -> list[str]:
        """The computed quantities of a solution in a random order in which each comes after its operands."""
        chosen = set(problem.needed)
        for name in problem.order:
            if name in problem.formulas and name not in chosen and rng.random() < flaws * self.needless:
                known = chosen | (problem.definitions.keys() - problem.formulas.keys())
                if known.issuperset(problem.formulas[name].operands):
                    chosen.add(name)
        order: list[str] = []
        waiting = sorted(chosen)
        while waiting:
            ready = [n for n in waiting if not any(o in waiting for o in problem.formulas[n].operands)]
            order.append(rng.choice(ready))
            waiting.remove(order[-1])
        # the one asked for heads the list, which is read backwards
        order.remove(problem.asked)
        return [*order, problem.asked]

    def _decide(self, name: str, formula: Formula, known: list[str], rng: random.Random, flaws: float) -> Formula:
        """The formula of a quantity, or a flawed one."""
        left, sign, right = formula
        wrong = [s for s in OPERATORS if s != sign]
        rate = self.wrong_operator
        if self.misconceptions:
            wrong, rate = self._misconception(name, left, sign), rate / self.misconceptions
        if wrong and rng.random() < flaws * rate:
            sign = rng.choice(wrong)
        others = [n for n in known if n not in formula.operands]
        if others and rng.random() < flaws * self.wrong_operand:
            left, right = (rng.choice(others), right) if rng.random() < 0.5 else (left, rng.choice(others))
        return Formula(left, sign, right)

    def _misconception(self, name: str, left: str, sign: str) -> list[str]:
        """The operator that is taken for that of a triple; [] where there is none. It is the same in every problem."""
        draw = random.Random(f"{name} {left} {sign}")
        return [draw.choice([s for s in OPERATORS if s != sign])] if draw.random() < self.misconceptions else []


def _aside(rng: random.Random) -> str:
    """A line that computes nothing."""
    return f"{rng.choice(OPENERS)} {' '.join(rng.choice(ITEMS) for _ in range(4))}.\n"


@checked("")
@dataclass(frozen=True)
class GraphProblems(GeneratedProblems):
    """The stream of `graph` problems."""

    task: GraphTask
