"""Credit token by token for display: pieces of text with their regions and numbers."""

from __future__ import annotations

from collections.abc import Sequence

from jaxtyping import Float
from torch import Tensor

from oar_lightning.answers.span import Region
from oar_lightning.inspection.heatmap import HeatmapCompletion, HeatmapToken
from oar_lightning.policy.token_text import TokenBytes
from oar_lightning.types import Credit, Rollouts


def completion_regions(rollouts: Rollouts, row: int) -> list[Region]:
    """The region of each token of a completion, from its masks; without an answer token all are `TAIL`."""
    columns = rollouts.response_mask[row].nonzero().flatten()
    reasoning, answer = rollouts.reasoning_mask[row, columns].tolist(), rollouts.answer_mask[row, columns].tolist()
    if not any(answer):
        return [Region.TAIL] * len(columns)
    first = answer.index(True)
    regions = [Region.CONCLUSION if i < first else Region.TAIL for i in range(len(columns))]
    for i in range(len(columns)):
        if reasoning[i]:
            regions[i] = Region.REASONING
        elif answer[i]:
            regions[i] = Region.ANSWER
    return regions


def heatmap_completions(
    rollouts: Rollouts,
    token_bytes: TokenBytes,
    credit: Credit,
    entropy: Float[Tensor, "B S"],
    advantages: Sequence[float | None],
    correct: Sequence[bool | None],
) -> list[HeatmapCompletion]:
    """Each row as a completion of the heat-map. `advantages`: the group advantages, one a row; `entropy` in nats."""
    completions = []
    for row in range(len(rollouts)):
        columns = rollouts.response_mask[row].nonzero().flatten()
        pieces = token_bytes.decode(rollouts.token_ids[row, columns].tolist()).pieces()
        values = zip(
            pieces,
            completion_regions(rollouts, row),
            credit.importance[row, columns].tolist(),
            credit.weights[row, columns].tolist(),
            credit.advantages[row, columns].tolist(),
            entropy[row, columns].tolist(),
            strict=True,
        )
        completions.append(
            HeatmapCompletion(
                tokens=[HeatmapToken(text, r, score, w, a, h) for text, r, score, w, a, h in values],
                reward=float(rollouts.rewards[row]),
                advantage=advantages[row],
                answer=rollouts.answers[row],
                correct=correct[row],
            )
        )
    return completions
