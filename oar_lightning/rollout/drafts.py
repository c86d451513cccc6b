"""Greedy decoding that copies: what follows the last tokens in a text that is known is read in one pass, and kept as far as the
policy would have taken it (LLMA, arXiv 2304.04487). Nothing changes but rounding."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from oar_lightning.common.activity import within
from oar_lightning.policy.decoder import PlainTexts

MATCH = 3
"""Tokens that have to be the same before something is copied."""
MOST_COLUMNS, PASS_TOKENS = 16, 160
"""A pass reads at most so many tokens of a row and about so many of all rows: where rows are few, a CPU reads several tokens of
each in little more time than one."""


class KnownTexts:
    """Texts of one problem, and where in them any `MATCH` tokens came last."""

    def __init__(self) -> None:
        self._places: dict[tuple[int, ...], tuple[Sequence[int], int]] = {}

    def __bool__(self) -> bool:
        return bool(self._places)

    def add(self, text: Sequence[int]) -> None:
        for end in range(MATCH, len(text)):
            self._places[tuple(text[end - MATCH : end])] = text, end

    def after(self, tokens: Sequence[int], count: int) -> Sequence[int]:
        """At most so many tokens that followed the last `MATCH` of these tokens."""
        text, end = self._places.get(tuple(tokens[-MATCH:]), ((), 0))
        return text[end : end + max(count, 0)]


@torch.no_grad()
def copy_greedily(
    texts: PlainTexts,
    hidden: Float[Tensor, "n H"],
    prompts: Sequence[Sequence[int]],
    limits: Sequence[int],
    known: Sequence[KnownTexts],
    end: Collection[int],
) -> list[list[int]]:
    """The greedy completions, each with its end token if it has one, of prompts that `texts` holds.

    Args:
        texts: n rows whose limit leaves `MOST_COLUMNS` beyond the longest completion.
        hidden: the final states of the prompts' last tokens.
        limits: the most tokens of each completion.
        known: of each prompt's problem.
        end: the tokens that end a completion.
    """
    begin = texts.width
    texts.open_room()
    completions = [[token] for token in texts.logits(hidden).argmax(-1).tolist()]
    device, live = hidden.device, list(range(len(prompts)))

    def is_done(row: int) -> bool:
        return completions[row][-1] in end or len(completions[row]) == limits[row]

    while True:
        going = [place for place, row in enumerate(live) if not is_done(row)]
        if len(going) < len(live):
            texts.select(torch.tensor(going, dtype=torch.long, device=device))
            live = [live[place] for place in going]
        within(len(prompts) - len(live), f"token {max(map(len, completions))}/{max(limits)}")
        if not live:
            return completions
        size = min(MOST_COLUMNS, max(1, PASS_TOKENS // len(live)))
        drafts = []
        for row in live:
            last = [*prompts[row][-MATCH:], *completions[row][-MATCH:]]
            drafts.append(known[row].after(last, min(size, limits[row] - len(completions[row])) - 1))
        width = 1 + max(map(len, drafts))
        read = [
            [completions[row][-1], *draft, *[0] * (width - 1 - len(draft))] for row, draft in zip(live, drafts, strict=True)
        ]
        starts = torch.tensor([[begin + len(completions[row]) - 1] for row in live], device=device)
        states = texts.read_at(torch.tensor(read, device=device), starts + torch.arange(width, device=device))
        likely = texts.logits(states.flatten(0, 1)).argmax(-1).view(len(live), width).tolist()
        for row, draft, tokens in zip(live, drafts, likely, strict=True):
            for place, token in enumerate(tokens[: len(draft) + 1]):
                completions[row].append(token)
                if is_done(row) or place == len(draft) or token != draft[place]:
                    break
