"""Where a completion turned: the token from which greedy decoding comes to the completion's own reward, and no longer to that
of the greedy completion."""

from __future__ import annotations

import contextlib
import operator
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any

import torch
from jaxtyping import Float
from torch import Tensor

from oar_lightning.common.ranges import Fraction, NonNegativeInt, PositiveFloat, PositiveInt, checked
from oar_lightning.credit.component import Continuations, Tools, group_advantages_of
from oar_lightning.credit.scorers.base import Scorer
from oar_lightning.credit.scorers.turning_point.deviations import deviations
from oar_lightning.credit.scorers.turning_point.learnt import Learnt, kind_of
from oar_lightning.credit.scorers.turning_point.search import Search
from oar_lightning.credit.scorers.turning_point.siblings import mark_siblings
from oar_lightning.objective.metric_sums import MetricSums
from oar_lightning.types import Prefix, Rollouts

GUESS_ABOVE = 0.7
POINTS = 2


@checked("scorer")
class TurningPoint(Scorer):
    """I_t = 1 on one token of each completion that came to another reward than the greedy completion of its prompt, and where
    the others of its group took the same decision as greedy decoding; else 0.

    V(s) is the reward of the greedy continuation of a prefix s. Along a completion it can change only at a *deviation*, a token
    that was not the most probable one: before the first of them V is that of the prompt, after the last it is the completion's
    own reward R. Each round continues `points` prefixes of each completion, before deviations that divide what is left into
    parts in which a turn is equally likely (`Learnt.weights`), and keeps the part in which V turns to R, the last one where
    it does so twice. If more than one deviation is left after the last round, that with the largest gap log p(most probable
    token) - log p(token) is taken. In a wrong completion the turning point is the token that lost it, as far as greedy decoding
    tells.

    With `search_every` above 1 that is so in batches of rollouts that search; in those between both who turned and where are
    guesses.

    With `siblings` the other side of a decision is scored, too (`mark_siblings`).

    OmegaPRM (arXiv 2406.06592) searches for the first error by halves, over steps and with values of sampled continuations.
    Greedy values, deviations, and the weights by which the search divides them are ours.

    Args:
        rounds: of continuations, one after another; 0 takes the largest gap of all, and continues prompts alone.
        points: prefixes of a completion that a round continues at once; 1 searches by halves. Two tell whether the likeliest
            deviation is the turning point, in one round.
        search_every: batches of rollouts from one search to the next. In those between, once enough is known
            (`Learnt.is_enough`), nothing is continued. Completions of a kind of which half or more turned are guessed to have
            turned, at their likeliest deviation.
        guess_above: the share of guesses that searches have to confirm, and of turns that have to be guessed, of late
            (`Checks`); below it every batch is searched. 0 guesses whatever they say.
        least: how far R is from V(prompt), in units of reward, in completions that are searched.
        siblings: whether completions that did not turn are scored at the decisions at which others of their group turned.
    """

    covers = "response"
    samples = 1

    def __init__(
        self,
        rounds: NonNegativeInt = 8,
        points: PositiveInt = POINTS,
        search_every: PositiveInt = 1,
        guess_above: Fraction = GUESS_ABOVE,
        least: Annotated[PositiveFloat, "a difference of rewards"] = 0.5,
        siblings: bool = True,
    ) -> None:
        self.rounds, self.points, self.least, self.siblings = rounds, points, least, siblings
        self.search_every, self.guess_above = search_every, guess_above
        self.reads_groups, self.learns = siblings or search_every > 1, search_every > 1
        if search_every > 1 and not rounds:
            raise ValueError(f"scorer.search_every={search_every} needs searches to learn from: set scorer.rounds >= 1, got 0")
        self._continue: Continuations | None = None
        self._learnt, self._pending, self._always_searches = Learnt(), Learnt(), False

    @property
    def idle(self) -> Mapping[str, str]:
        unread: dict[str, str] = {}
        if self.search_every == 1 and self.guess_above != GUESS_ABOVE:
            unread[f"guess_above={self.guess_above:g}"] = "scorer.search_every=1"
        if not self.rounds and self.points != POINTS:
            unread[f"points={self.points}"] = "scorer.rounds=0"
        return unread

    def use(self, tools: Tools) -> None:
        """A run begins with nothing learnt: the scorer may have served another run of this process."""
        self._continue = tools.continuations
        self.load_state_dict({})

    @contextlib.contextmanager
    def looked_at(self) -> Iterator[None]:
        pending, self._always_searches = self._pending, True
        try:
            yield
        finally:
            self._pending, self._always_searches = pending, False

    def forecast(self, completions: int, tokens: int) -> str:
        return (
            f"continuations: at most {completions * self.rounds * self.points:,} and one for each prompt a step beside "
            f"{completions:,} completions (scorer.rounds={self.rounds}, scorer.points={self.points}); credit/continuations and "
            "time/continuations_s tell what they were"
        )

    def learn(self, model: Any, rollouts: Rollouts) -> None:
        """Count what was found since the last call."""
        self._learnt, self._pending = self._learnt.then(self._pending.of_all_ranks()), Learnt()

    def state_dict(self) -> dict[str, Any]:
        return self._learnt.then(self._pending.of_all_ranks()).state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._learnt, self._pending = Learnt.from_state_dict(state), Learnt()

    def __call__(self, model: Any, rollouts: Rollouts) -> Float[Tensor, "B S"]:
        assert self._continue is not None, "a run lends its tools before the first step"
        size, advantages = rollouts.group_size, group_advantages_of(rollouts).tolist()
        groups = [range(row, row + size) for row in range(0, len(rollouts), size) if any(advantages[row : row + size])]
        values = _GreedyValues(self._continue, model, rollouts)
        kinds, searches = self._opened(model, rollouts, groups)
        guesses = {row: searches[row].at_the_likeliest() for own in kinds for row in self._learnt.expected(own)}
        self.totals = MetricSums()
        if self._guesses_at(rollouts.step):
            searches = guesses
        else:
            searches = self._searched(rollouts, groups, searches, values)
            found = Learnt.of(searches, kinds, guesses)
            self._pending += found
            right, guessed, turned = found.checks.right, found.checks.guessed, found.checks.turned
            self.totals.add({"credit/right_guess_frac": (right, guessed), "credit/guessed_turn_frac": (right, turned)})
        scores = torch.zeros(rollouts.token_ids.shape, device=rollouts.token_ids.device)
        turns = {row: search.turning_point for row, search in searches.items()}
        for row, turn in turns.items():
            scores[row, turn.column] = 1.0
        whole = int(rollouts.attention_mask.sum())
        read = values.tokens + (whole if rollouts.prediction_states is None else 0)
        for group in groups if self.siblings else ():
            read += mark_siblings(model, rollouts, {row: turns[row] for row in group if row in turns}, group, scores)
        self.metrics = {
            "forward_equivalents": read / max(1, whole),
            "turned_frac": len(searches) / len(rollouts),
        }
        self.totals.fold(operator.add, {"credit/continuations": float(values.sampled)})
        self.totals.fold(max, {"time/continuations_s": values.seconds})
        return scores

    def _guesses_at(self, step: int) -> bool:
        if self._always_searches or step % self.search_every == 0:
            return False
        return self._learnt.is_enough and self._learnt.checks.confirm(self.guess_above)

    def _opened(
        self, model: Any, rollouts: Rollouts, groups: Sequence[range]
    ) -> tuple[list[dict[int, int]], dict[int, Search]]:
        """Of completions that deviate: their kinds, group by group (but where rewards differ by less than `least`), and
        searches that have not begun."""
        found, rewards = deviations(model, rollouts), rollouts.rewards.tolist()
        advantages = group_advantages_of(rollouts).tolist()
        kinds = []
        for group in groups:
            own = slice(group.start, group.stop)
            if max(rewards[own]) - min(rewards[own]) >= self.least:
                kinds.append({row: kind_of(advantages[row], advantages[own]) for row in group if found[row]})
        rows = [row for group in groups for row in group if found[row]]
        return kinds, {row: Search.over(found[row], self._learnt.weights(found[row])) for row in rows}

    def _searched(
        self, rollouts: Rollouts, groups: Sequence[range], searches: Mapping[int, Search], values: _GreedyValues
    ) -> dict[int, Search]:
        """By rows of the groups: the searches of completions that came to another reward than the greedy one, at their end."""
        rewards, advantages = rollouts.rewards.tolist(), group_advantages_of(rollouts).tolist()
        starts, has_tokens = rollouts.response_mask.long().argmax(1).tolist(), rollouts.response_mask.any(1).tolist()
        # most greedy completions are right: wrong ones are searched before that is known, which saves a round
        middles = {row: places for row, places in self._middles(searches).items() if advantages[row] < 0}
        firsts = [next(filter(has_tokens.__getitem__, group), group[0]) for group in groups]
        prompts = [Prefix(row, starts[row]) for row in firsts]
        first = values([*prompts, *_before(middles, searches)])
        of_prompt = {row: value for group, value in zip(groups, first, strict=False) for row in group}
        searches = {row: s for row, s in searches.items() if abs(of_prompt[row] - rewards[row]) >= self.least}
        left = first[len(groups) :]
        while True:
            for row, places in middles.items():
                of_row, left = left[: len(places)], left[len(places) :]
                if row in searches:
                    turned = [abs(value - rewards[row]) < abs(value - of_prompt[row]) for value in of_row]
                    searches[row] = searches[row].narrowed(places, turned)
            middles = self._middles(searches)
            if not middles:
                return searches
            left = values(_before(middles, searches))

    def _middles(self, searches: Mapping[int, Search]) -> dict[int, list[int]]:
        """By row, the deviations before which searches that go on ask next."""
        going_on = {row: search for row, search in searches.items() if search.is_open and search.rounds < self.rounds}
        return {row: search.middles(self.points) for row, search in going_on.items()}


class _GreedyValues:
    """V of prefixes, and what was sampled for it."""

    def __init__(self, continuations: Continuations, model: Any, rollouts: Rollouts) -> None:
        self.continuations, self.model, self.rollouts = continuations, model, rollouts
        self.sampled = self.tokens = 0
        self.seconds = 0.0

    def __call__(self, prefixes: list[Prefix]) -> list[float]:
        if not prefixes:
            return []
        started = time.perf_counter()
        found = self.continuations(self.model, self.rollouts, prefixes, 1, 0, greedy=True)
        self.seconds += time.perf_counter() - started
        self.sampled, self.tokens = self.sampled + found.sampled, self.tokens + found.tokens
        return found.rewards[:, 0].tolist()


def _before(middles: Mapping[int, Sequence[int]], searches: Mapping[int, Search]) -> list[Prefix]:
    return [Prefix(row, searches[row].deviations[place].column) for row, places in middles.items() for place in places]
