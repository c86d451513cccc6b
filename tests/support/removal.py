"""Completions of which tokens are removed: of different lengths, one of which cannot be scored; and some with a planted key."""

from __future__ import annotations

import torch
from support.toy import padded, rollouts_of

from oar_lightning.types import Rollouts

SEQUENCES = [
    {"before": [3, 4, 5, 6, 7], "reasoning": [8, 9, 10, 4, 17], "conclude": [11], "answer": [12, 13], "tail": [1, 2]},
    {"before": [14], "reasoning": [15, 16, 17, 18, 19, 20, 21], "answer": [22]},
    {"before": [9], "reasoning": [15, 16, 17], "tail": [22]},
    {"before": [23, 24], "reasoning": [25], "conclude": [26, 27], "answer": [28, 29, 30], "tail": [31]},
]
"""The third has no answer."""

SCORABLE = [0, 1, 3]


def sequences_as_rollouts() -> Rollouts:
    return padded(rollouts_of(SEQUENCES, pad_token_id=39, rewards=torch.tensor([1.0, 0.0, 1.0, 0.0])), left=3, right=2)


START, EQUALS, KEYS, FILLERS = 1, 2, range(3, 7), range(8, 16)


class Copier(torch.nn.Module):
    """Stands where a model does: its embeddings are all that is read."""

    def __init__(self) -> None:
        super().__init__()
        self.embeddings = torch.nn.Embedding(16, 4)

    def get_input_embeddings(self) -> torch.nn.Embedding:
        return self.embeddings


def planted_keys() -> tuple[Rollouts, torch.Tensor]:
    """Rollouts START | four fillers and one key | EQUALS | key, and the place of each key among the reasoning."""
    rng = torch.Generator().manual_seed(3)
    sequences, places = [], []
    for _ in range(12):
        reasoning = torch.randint(FILLERS.start, FILLERS.stop, (5,), generator=rng).tolist()
        place, key = int(torch.randint(5, (1,), generator=rng)), int(torch.randint(KEYS.start, KEYS.stop, (1,), generator=rng))
        reasoning[place] = key
        sequences.append({"before": [START], "reasoning": reasoning, "conclude": [EQUALS], "answer": [key]})
        places.append(place)
    verdicts = torch.tensor([1.0, 0.0] * 6)
    return rollouts_of(sequences, rewards=verdicts), torch.tensor(places)
