"""Step scores from what each step adds to the likelihood of an answer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Annotated, Any, Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor

from oar_lightning.common.ranges import Fraction, Rule, checked
from oar_lightning.credit.component import Encode, Tools
from oar_lightning.credit.scorers.base import distinct_rows
from oar_lightning.credit.scorers.prefix_answers import Belief, PrefixReader, Question
from oar_lightning.credit.scorers.steps import Steps, StepScorer
from oar_lightning.credit.segments import Segmenter, segment_numbers
from oar_lightning.policy.decoder import choose_decoder
from oar_lightning.policy.language_model import can_share_prefixes, positions_of, scoring_mode
from oar_lightning.policy.token_budget import PASS_TOKENS, SomeTokens, TokenBudget
from oar_lightning.types import Rollouts

ANSWER_TOKENS = 64
"""Of longer answers the first so many tokens are asked for."""


def potential(accuracy: Tensor, confidence: Tensor) -> Tensor:
    """SPAE's step potential in [-1, 1]: 1 sure and right, 0 unsure, -1 sure and wrong."""
    return 1.5 * accuracy * confidence + 0.5 * accuracy - confidence


Value = Literal["gold", "own", "prob", "watermark", "potential"]

VALUES: dict[Value, Callable[[Belief], Tensor]] = {
    "gold": lambda belief: belief.logprob,
    "own": lambda belief: belief.logprob,
    "prob": lambda belief: belief.logprob.exp(),
    "watermark": lambda belief: belief.logprob.exp().cummax(0).values,
    "potential": lambda belief: potential(belief.logprob.exp(), (-belief.entropy).exp()),
}
"""The value of each prefix, whose differences are the gains."""


CUE = Rule(lambda cue: cue, "scorer.cue is the text that leads up to an answer and must not be empty")


@checked("scorer", CUE)
class InformationGain(StepScorer):
    """c_k = v_k - v_{k-1} for the tokens of step k, v_k the value of an answer after that step; v_0 after the prompt alone.

    With q_k the mean log-probability (nats) of the answer's tokens after the text up to step k and the words that lead up to an
    answer: `gold` v = q of the gold answer; `own` v = q of the completion's own answer, times the sign of the group advantage,
    so that what speaks for a wrong answer is < 0; `prob` v = exp(q), the gold answer (IGPO, arXiv 2510.14967); `watermark` the
    largest exp(q) so far (arXiv 2602.01034), so that gains are >= 0 and repetitions gain nothing; `potential` SPAE's step
    potential of exp(q) and exp(-mean entropy). A completion's gains sum to the last value minus the first.

    A completion without reasoning, without the answer that is asked for, or too long for the policy with what is appended
    scores 0, with which gate.combine=add and multiply keep its advantage; `unread_frac` is their fraction. For gate=signed.

    Args:
        segments: divides the reasoning into steps.
        mode: see above.
        cue: the text before the answer where the completion has no conclusion of its own.
        own_cue: lead up to the answer with the completion's own conclusion (the tokens between its reasoning and its answer).
        discount: None: a step gets its own gain; g: the sum of its and all later gains, each later one times g.
        baseline: subtract the mean over all steps of the group (`group`), or over its steps at the same relative place
            (`step`).
        absolute: importance |c_k|, for gates that read no sign.
        token_budget: padded tokens of one pass, or `auto`; bounds memory, does not change the numbers.
        share_prefixes: a completion's prefixes share the keys and values of one pass over its text. Otherwise, and for models
            whose cache cannot be shared, each is run in full length. Does not change the numbers.
    """

    def __init__(
        self,
        segments: Segmenter,
        mode: Value = "gold",
        cue: str = "The answer is \\boxed{",
        own_cue: bool = True,
        discount: Fraction | Annotated[None, "each step's own gain"] = None,
        baseline: Literal["none", "group", "step"] = "none",
        absolute: bool = False,
        token_budget: TokenBudget | SomeTokens = PASS_TOKENS,
        share_prefixes: bool = True,
    ) -> None:
        self.segments = segments
        self.mode = mode
        self.cue = cue
        self.own_cue = own_cue
        self.discount = discount
        self.baseline = baseline
        self.signed = not absolute
        self.reads_groups = baseline != "none"
        if not isinstance(token_budget, TokenBudget):
            token_budget = TokenBudget("scorer.token_budget", token_budget, PASS_TOKENS)
        self.token_budget = token_budget
        self.share_prefixes = share_prefixes
        self._encode: Encode | None = None

    def use(self, tools: Tools) -> None:
        self._encode = tools.encode

    @torch.no_grad()
    def steps(self, model: Any, rollouts: Rollouts) -> Steps:
        mask = rollouts.reasoning_mask
        numbers = segment_numbers(self.segments(model, rollouts, mask), mask)
        beliefs = self.beliefs(model, rollouts, numbers)
        gains = {row: self.gains(belief, _advantage(rollouts, row)) for row, belief in beliefs.items()}
        for rows in range(0, len(rollouts), rollouts.group_size):
            group = [row for row in range(rows, rows + rollouts.group_size) if row in gains]
            gains.update(zip(group, centred([gains[row] for row in group], self.baseline), strict=True))
        scores = torch.zeros(mask.shape, dtype=torch.float64, device=mask.device)
        for row, values in gains.items():
            inside = mask[row]
            scores[row, inside] = values.to(mask.device)[numbers[row, inside]]
        unread = torch.tensor([row not in gains for row in range(len(rollouts))], device=mask.device)
        self.metrics["forward_equivalents"] += self.segments.passes(rollouts)
        self.metrics["unread_frac"] = float(unread.float().mean())
        double = model.get_input_embeddings().weight.dtype == torch.float64
        return Steps(scores if double else scores.float(), numbers.masked_fill(unread[:, None], -1))

    def of_tokens(self, model: Any, rollouts: Rollouts, scores: Float[Tensor, "B S"]) -> Float[Tensor, "B S"]:
        return scores if self.signed else scores.abs()

    def gains(self, belief: Belief, advantage: float | None) -> Float[Tensor, " K"]:
        """The scores of one completion's steps; `advantage`: its group advantage, where that is known."""
        gains = VALUES[self.mode](belief).diff()
        if self.mode == "own" and advantage is not None:
            gains = gains * ((advantage > 0) - (advantage < 0))
        return gains if self.discount is None else discounted(gains, self.discount)

    def beliefs(self, model: Any, rollouts: Rollouts, numbers: Int[Tensor, "B S"]) -> dict[int, Belief]:
        """What the policy thinks of the answer before the first step and after each step, of the rows that can be asked."""
        limit = positions_of(model)
        asked = {row: q for row, n in enumerate(numbers.tolist()) if (q := self.question(rollouts, row, n)) is not None}
        first = rollouts.attention_mask.long().argmax(1)
        for row, q in list(asked.items()):
            if limit is not None and q.ends[-1] - int(first[row]) + len(q.cue) + len(q.answer) > limit:
                del asked[row]
        index = torch.tensor(list(asked), dtype=torch.long, device=first.device)
        _, same_text = distinct_rows(rollouts, index)
        keys = [(text, q.ends, q.cue, q.answer) for text, q in zip(same_text, asked.values(), strict=True)]
        distinct = dict(zip(reversed(keys), reversed(list(asked.values())), strict=True))
        with scoring_mode(model):
            share = self.share_prefixes and can_share_prefixes(model)
            reader = PrefixReader(model, choose_decoder(model), self.token_budget, share, rollouts.temperature)
            found, tokens = reader.read(rollouts.token_ids, first, list(distinct.values()))
        self.metrics = {"forward_equivalents": tokens / max(1, int(rollouts.attention_mask.sum()))}
        of_key = dict(zip(distinct, found, strict=True))
        return {row: of_key[key] for row, key in zip(asked, keys, strict=True)}

    def question(self, rollouts: Rollouts, row: int, numbers: Sequence[int]) -> Question | None:
        """What is asked of a row whose tokens are in these steps; None without reasoning or answer."""
        columns = [column for column, number in enumerate(numbers) if number >= 0]
        if not columns or columns[0] == 0:
            return None
        begins = [c for c in columns if c == columns[0] or numbers[c] != numbers[c - 1]]
        ids = rollouts.token_ids[row]
        places = rollouts.answer_mask[row].nonzero().flatten().tolist()
        conclusion = list(range(columns[-1] + 1, places[0])) if places else []
        cue = ids[conclusion].tolist() if self.own_cue else []
        if self.mode == "own":
            answer = ids[places].tolist()
            if rollouts.answers[row] is not None:  # else its last token stands for the answer, and no words lead up to that
                cue = cue or self.encode(self.cue, "")[0]
        else:
            cue, answer = self._gold(rollouts, row, cue, conclusion, places)
        if not answer:
            return None
        return Question(row, (*begins, columns[-1] + 1), tuple(cue), tuple(answer[:ANSWER_TOKENS]))

    def _gold(
        self, rollouts: Rollouts, row: int, cue: list[int], conclusion: Sequence[int], places: Sequence[int]
    ) -> tuple[list[int], list[int]]:
        """Cue and gold answer. A right completion's own tokens where it writes the answer in the same way."""
        gold = rollouts.problems[row].answer.strip()
        if not gold:
            return cue, []
        if not cue:
            return self.encode(self.cue, gold)
        if rollouts.answers[row] == gold:
            return cue, rollouts.token_ids[row, list(places)].tolist()
        text, lead = own_conclusion(rollouts, row, conclusion, places)
        before, answer = self.encode(text, lead + gold)
        merged = before != self.encode(text, "")[0]  # the answer's first token has the end of the conclusion, as `{-` has
        return before if merged else cue, answer

    def encode(self, before: str, text: str) -> tuple[list[int], list[int]]:
        """Tokens of a cue and of an answer."""
        assert self._encode is not None, "a run lends its tools before the first step"
        return self._encode(before, text)


def own_conclusion(rollouts: Rollouts, row: int, conclusion: Sequence[int], places: Sequence[int]) -> tuple[str, str]:
    """The text of a completion's conclusion, and what of it is in the answer's first token, such as a space. Nothing of
    rollouts without texts."""
    if not rollouts.token_spans:
        return "", ""
    columns = rollouts.response_mask[row].nonzero().flatten().tolist()
    spans, text = rollouts.token_spans[row], rollouts.completions[row]
    begin, (start, end) = spans[columns.index(conclusion[0])][0], spans[columns.index(places[0])]
    found = text.find(rollouts.answers[row] or "", start)
    return text[begin:start], text[start:found] if start <= found < end else ""


def discounted(gains: Float[Tensor, " K"], discount: float) -> Float[Tensor, " K"]:
    """sum over j >= k of discount^(j - k) gain_j."""
    out, total = torch.empty_like(gains), 0.0
    for k in reversed(range(len(gains))):
        total = float(gains[k]) + discount * total
        out[k] = total
    return out


def centred(gains: Sequence[Tensor], baseline: str) -> list[Tensor]:
    """The steps' scores of a group minus their mean: of all steps, or of one step of each completion at the same relative
    place."""
    if baseline == "none" or not gains:
        return list(gains)
    if baseline == "group":
        mean = torch.cat(list(gains)).mean()
        return [values - mean for values in gains]
    return [
        values - torch.stack([other[torch.arange(len(values)) * len(other) // len(values)] for other in gains]).mean(0)
        for values in gains
    ]


def _advantage(rollouts: Rollouts, row: int) -> float | None:
    return None if rollouts.advantages is None else float(rollouts.advantages[row])
