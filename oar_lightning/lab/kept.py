"""What takes long and was done before, from the store: continuations, and outcomes of completions with tokens replaced."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from oar_lightning.credit.component import Continuations
from oar_lightning.credit.scorers.oar_p.fills import FillName
from oar_lightning.lab.removal.sets import Outcome, Sets
from oar_lightning.lab.store import Store
from oar_lightning.rollout.continuations import token_limit
from oar_lightning.types import Continued, Prefix, Rollouts

UNIT = 2048
"""Sets whose outcomes are computed, and kept, at once."""


@dataclass(frozen=True)
class KeptContinuations:
    """Continuations of which those that are in the store are not sampled again. Of one call all are kept, or none.

    ``max_new_tokens`` is that of sampling; a longer completion is continued to its own length.
    """

    continuations: Continuations
    store: Store
    max_new_tokens: int

    def __call__(
        self, model: Any, rollouts: Rollouts, prefixes: Sequence[Prefix], samples: int, seed: int, greedy: bool = False
    ) -> Continued:
        asked = np.asarray([samples, seed], np.int64).tobytes() + (b"greedy" if greedy else b"")
        keys = [self.store.key(b"continued", asked, self.identity(rollouts, prefix)) for prefix in prefixes]
        kept = self.store.get(keys)
        missing = {key: prefix for key, prefix in zip(keys, prefixes, strict=True) if key not in kept}
        sampled = tokens = 0
        if missing:
            found = self.continuations(model, rollouts, list(missing.values()), samples, seed, greedy)
            values = found.rewards.double().cpu().numpy()
            self.store.put({key: row.tobytes() for key, row in zip(missing, values, strict=True)})
            kept, sampled, tokens = self.store.get(keys), found.sampled, found.tokens
        rewards = np.stack([np.frombuffer(kept[key]) for key in keys]) if keys else np.zeros((0, samples))
        return Continued(torch.tensor(rewards).to(rollouts.rewards), sampled, tokens)

    def identity(self, rollouts: Rollouts, prefix: Prefix) -> bytes:
        """What a prefix's continuations depend on: its tokens, those of its completion that count towards the limit, the limit,
        and its problem, which judges."""
        row, end = prefix
        ids = rollouts.token_ids[row, :end][rollouts.attention_mask[row, :end]].tolist()
        begun = int(rollouts.response_mask[row, :end].sum())
        limit = token_limit(rollouts, row, self.max_new_tokens)
        problem = repr(rollouts.problems[row]) if rollouts.problems else ""
        return np.asarray([limit, begun, len(ids), *ids], np.int64).tobytes() + problem.encode()


@dataclass(frozen=True)
class KeptOutcome:
    """An outcome of which the values in the store are not computed again.

    ``name`` tells outcomes apart; with a row's tokens, its set and the fill it determines a value.
    """

    outcome: Outcome
    rollouts: Rollouts
    store: Store
    name: str

    def __call__(self, sets: Sets, fill: FillName) -> Float[Tensor, " n"]:
        rows = {row: self._text(row) for row in sets.row.unique().tolist()}
        bits = np.packbits(sets.removed.cpu().numpy(), axis=1)
        keys = [
            self.store.key(b"outcome", self.name.encode(), fill.encode(), rows[row], own.tobytes().rstrip(b"\0"))
            for row, own in zip(sets.row.tolist(), bits, strict=True)
        ]
        kept = self.store.get(keys)
        missing = [i for i, key in enumerate(keys) if key not in kept]
        missing.sort(key=sets.row.tolist().__getitem__)  # those of one text together
        for start in range(0, len(missing), UNIT):
            unit = missing[start : start + UNIT]
            values = self.outcome(Sets(sets.row[unit], sets.removed[unit]), fill).double().cpu().numpy()
            found = {keys[i]: value.tobytes() for i, value in zip(unit, values, strict=True)}
            self.store.put(found)
            kept |= found
        values = np.array([np.frombuffer(kept[key])[0] for key in keys])
        return torch.tensor(values, dtype=torch.float64, device=sets.row.device)

    def _text(self, row: int) -> bytes:
        """A row's tokens with its regions, whatever the padding."""
        own = self.rollouts.attention_mask[row]
        parts = (self.rollouts.token_ids, self.rollouts.reasoning_mask, self.rollouts.answer_mask)
        return b"".join(part[row, own].long().cpu().numpy().tobytes() for part in parts)
