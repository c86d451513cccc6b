"""Locates the characters of a sampled `chain` completion that decide its outcome, by the task's rules."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import accumulate

from oar_lightning.data.chain.problem import Account, asked_accounts
from oar_lightning.data.pieces import Piece, PieceCredit
from oar_lightning.types import MathProblem

_STEP = re.compile(r"(?:([A-Z][a-z]+): )?(?<!\d)(\d+)?([+-])(\d+)(=)(\d+)")


def step_ends(problem: MathProblem, completion: str) -> list[int]:
    """Where the steps of a completion end, for `credit.segments.TextCuts`."""
    return [match.end() for match in _STEP.finditer(completion)]


class ChainCredit(PieceCredit):
    """Numbers and operators; the decisions are the results, in which the policy errs. Wrong is what is not the problem's."""

    task = "chain"

    def pieces(self, problem: MathProblem, completion: str) -> list[Piece] | None:
        accounts = asked_accounts(problem.question)
        return None if accounts is None else list(_pieces(accounts, completion))


def _pieces(accounts: dict[str, Account], completion: str) -> Iterator[Piece]:
    totals = {name: [str(t) for t in accumulate(a.deltas, initial=a.start)] for name, a in accounts.items()}
    done = dict.fromkeys(accounts, 0)
    only_name = next(iter(accounts)) if len(accounts) == 1 else None
    for match in _STEP.finditer(completion):
        name = match[1] or only_name
        if name not in accounts:
            continue  # a distracting person's step, or a step without a name where there are two persons
        step = done[name]
        done[name] += 1
        right: list[str | None] = [None] * 4
        if step < len(accounts[name].deltas):
            delta, total = accounts[name].deltas[step], totals[name]
            right = [total[step], "+" if delta > 0 else "-", str(abs(delta)), total[step + 1]]
        for group, expected in zip((2, 3, 4, 6), right, strict=True):
            if match[group] is not None:  # the first operand may be left out
                yield Piece(match.span(group), match[group] != expected, result=group == 6, decision=group == 6)
