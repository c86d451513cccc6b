"""How likely a policy thinks an answer is after each of several prefixes of a text, in about one pass over the text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from oar_lightning.credit.predictions import in_chunks, read_predictions
from oar_lightning.credit.scorers.prefix import PREFIX_DISCOUNT, read_prompts
from oar_lightning.policy.decoder import Decoder, Past, empty_past
from oar_lightning.policy.language_model import embed
from oar_lightning.policy.token_budget import TokenBudget


class Question(NamedTuple):
    """What is asked of one text: the columns before which its prefixes end, ascending; the tokens that lead up to the answer;
    the answer's tokens."""

    row: int
    ends: tuple[int, ...]
    cue: tuple[int, ...]
    answer: tuple[int, ...]


class Belief(NamedTuple):
    """After each prefix: the answer's mean log-probability, and the mean entropy of the distributions that predict it; nats."""

    logprob: Float[Tensor, " n"]
    entropy: Float[Tensor, " n"]


class _Asked(NamedTuple):
    """One prefix of one text; `tokens`: the prefix's last token, the cue, and the answer but for its last token."""

    text: int
    end: int
    tokens: list[int]
    answer: tuple[int, ...]


@dataclass(frozen=True)
class PrefixReader:
    """Appends cue and answer to prefixes of texts and reads the answer's probabilities.

    Args:
        token_budget: padded tokens of one pass; bounds memory, does not change the numbers.
        share_prefixes: run each text once, and what is appended on its keys and values; otherwise each prefix in full length.
        temperature: of the distribution whose probabilities are read.
    """

    model: Any
    decoder: Decoder
    token_budget: TokenBudget
    share_prefixes: bool
    temperature: float

    def read(
        self, token_ids: Int[Tensor, "N S"], first: Int[Tensor, " N"], questions: Sequence[Question]
    ) -> tuple[list[Belief], int]:
        """What the policy thinks of each question, and the padded tokens that went through it.

        Texts are left-padded: a row's tokens begin at column ``first``, before the first end.
        """
        beliefs: list[Belief | None] = [None] * len(questions)
        tokens = 0
        lengths = [q.ends[-1] - int(first[q.row]) for q in questions]

        def work(chunk: list[int]) -> tuple[list[Belief], int]:
            return self._read_texts(token_ids, first, [questions[i] for i in chunk])

        for chunk, (found, count) in self.token_budget.run_in_chunks(lengths, work):
            tokens += count
            for i, belief in zip(chunk, found, strict=True):
                beliefs[i] = belief
        return [belief for belief in beliefs if belief is not None], tokens

    def _read_texts(
        self, token_ids: Int[Tensor, "N S"], first: Int[Tensor, " N"], questions: Sequence[Question]
    ) -> tuple[list[Belief], int]:
        rows = torch.tensor([q.row for q in questions], device=token_ids.device)
        ids, first = token_ids[rows], first[rows]
        past, tokens = self._read_past(ids, first, questions) if self.share_prefixes else (empty_past(first), 0)
        asked = [
            _Asked(text, end, [int(ids[text, end - 1]), *q.cue, *q.answer[:-1]], q.answer)
            for text, q in enumerate(questions)
            for end in q.ends
        ]
        if self.share_prefixes:
            sizes = [max(len(a.tokens), -(-a.end // PREFIX_DISCOUNT)) for a in asked]
        else:
            sizes = [a.end - int(first[a.text]) + len(a.tokens) - 1 for a in asked]
        numbers = torch.empty(len(asked), 2, dtype=torch.float64)

        def work(chunk: list[int]) -> tuple[Float[Tensor, "n 2"], int]:
            part = [asked[i] for i in chunk]
            return self._ask_on_past(past, part) if self.share_prefixes else self._ask_in_full(ids, first, part)

        for chunk, (found, count) in self.token_budget.run_in_chunks(sizes, work):
            numbers[chunk] = found.double().cpu()
            tokens += count
        parts = numbers.split([len(q.ends) for q in questions])
        return [Belief(*part.unbind(1)) for part in parts], tokens

    def _read_past(self, ids: Int[Tensor, "N S"], first: Int[Tensor, " N"], questions: Sequence[Question]) -> tuple[Past, int]:
        """The past of the texts but for the last token of the longest prefix, each prompt run once."""
        start, stop = (end(q.ends[i] for q in questions) - 1 for end, i in ((min, 0), (max, -1)))
        prompts, owner, tokens = read_prompts(self.model, self.decoder, ids[:, :start], first, self.token_budget)
        prompts = prompts.select(owner)
        if stop == start:
            return prompts, tokens
        text = ids[:, start:stop]
        read_at = torch.zeros_like(text[:, :1]), torch.ones_like(text[:, :1], dtype=torch.bool)  # its state is not used
        _, past = self.decoder(prompts, embed(self.model, text), read_at, keep=True)
        assert past is not None
        return past, tokens + text.numel()

    def _ask_on_past(self, past: Past, asked: Sequence[_Asked]) -> tuple[Float[Tensor, "n 2"], int]:
        device = past.first.device
        texts, ends = (
            torch.tensor(column, device=device) for column in zip(*((a.text, a.end - 1) for a in asked), strict=True)
        )
        width = max(len(a.tokens) for a in asked)
        ids = torch.tensor([a.tokens + [0] * (width - len(a.tokens)) for a in asked], device=device)  # not seen by what is read
        return self._read_answers(past.until(texts, ends), ids, asked, [len(a.tokens) for a in asked]), ids.numel()

    def _ask_in_full(
        self, ids: Int[Tensor, "N S"], first: Int[Tensor, " N"], asked: Sequence[_Asked]
    ) -> tuple[Float[Tensor, "n 2"], int]:
        rows = [[*ids[a.text, int(first[a.text]) : a.end - 1].tolist(), *a.tokens] for a in asked]
        width = max(map(len, rows))
        padded = torch.tensor([[0] * (width - len(row)) + row for row in rows], device=ids.device)
        begins = torch.tensor([width - len(row) for row in rows], device=ids.device)
        return self._read_answers(empty_past(begins), padded, asked, [width] * len(rows)), padded.numel()

    def _read_answers(
        self, past: Past, ids: Int[Tensor, "n W"], asked: Sequence[_Asked], stops: Sequence[int]
    ) -> Float[Tensor, "n 2"]:
        """Mean log-probability and entropy of the answers, which the columns before `stops` predict."""
        columns, targets, valid = _answers(asked, stops, ids.device)
        states, _ = self.decoder(past, embed(self.model, ids), (columns, valid))
        read = in_chunks(partial(read_predictions, temperature=self.temperature), self.model, states[valid], targets[valid])
        out = torch.zeros(*valid.shape, 2, dtype=read.dtype, device=ids.device)
        out[valid] = read[:, :2]
        return out.sum(1) / valid.sum(1, keepdim=True)


def _answers(
    asked: Sequence[_Asked], stops: Sequence[int], device: torch.device
) -> tuple[Int[Tensor, "n A"], Int[Tensor, "n A"], Bool[Tensor, "n A"]]:
    """The columns that predict each answer, its tokens, and which of them are real."""
    longest = max(len(a.answer) for a in asked)
    columns = [[*range(s - len(a.answer), s)] + [0] * (longest - len(a.answer)) for a, s in zip(asked, stops, strict=True)]
    targets = [[*a.answer] + [0] * (longest - len(a.answer)) for a in asked]
    valid = [[i < len(a.answer) for i in range(longest)] for a in asked]
    return torch.tensor(columns, device=device), torch.tensor(targets, device=device), torch.tensor(valid, device=device)
