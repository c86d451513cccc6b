"""A model with a decision, its restatement, and an answer that is read from the restatement alone."""

from __future__ import annotations

import pytest
import torch
from support.toy import rollouts_of
from transformers import Qwen2Config, Qwen2ForCausalLM

START, EQUALS, COPY = 1, 2, 3
KEYS, FILLERS = range(4, 8), range(8, 16)


def draw_relays(count: int, seed: int):
    """Rollouts START | filler key filler COPY key filler | EQUALS | key."""
    rng = torch.Generator().manual_seed(seed)
    fillers = torch.randint(FILLERS.start, FILLERS.stop, (count, 3), generator=rng).tolist()
    keys = torch.randint(KEYS.start, KEYS.stop, (count,), generator=rng).tolist()
    sequences = [
        {"before": [START], "reasoning": [a, k, b, COPY, k, c], "conclude": [EQUALS], "answer": [k]}
        for (a, b, c), k in zip(fillers, keys, strict=True)
    ]
    return rollouts_of(sequences)


@pytest.fixture(scope="session")
def relaying_model():
    """(model, rollouts, columns of the decisions), trained for a few seconds."""
    torch.manual_seed(0)
    config = Qwen2Config(
        vocab_size=16,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=2,
        max_position_embeddings=32,
        tie_word_embeddings=False,
    )
    model = Qwen2ForCausalLM(config)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for step in range(300):
        ids = draw_relays(64, seed=1000 + step).token_ids
        read = ids.clone()  # in half of the texts with another decision, so that the answer is read from the restatement
        read[32:, 2] = torch.randint(KEYS.start, KEYS.stop, (32,), generator=torch.Generator().manual_seed(step))
        losses = torch.nn.functional.cross_entropy(model(read).logits[:, :-1].mT, read[:, 1:], reduction="none")
        losses[32:, 4] = 0.0  # nothing tells the restatement there
        optimizer.zero_grad()
        losses.mean().backward()
        optimizer.step()
    rollouts = draw_relays(16, seed=1)
    model.zero_grad()
    with torch.no_grad():
        predicted = model(rollouts.token_ids).logits.argmax(-1)
    assert (predicted[:, [4, 7]] == rollouts.token_ids[:, [5, 8]]).all(), "it copies twice"
    return model.eval(), rollouts, torch.full((16,), 2)
