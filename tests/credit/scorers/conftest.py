"""A model that learned one thing: the answer is the key token among fillers."""

from __future__ import annotations

import pytest
import torch
from support.toy import rollouts_of
from transformers import Qwen2Config, Qwen2ForCausalLM

START, EQUALS, KEYS, FILLERS, REASONING = 1, 2, range(3, 11), range(11, 24), 6


def draw_copies(count: int, seed: int):
    """Rollouts START | six tokens, one of them a key | EQUALS | key, and the column of each key."""
    rng = torch.Generator().manual_seed(seed)
    fillers = torch.randint(FILLERS.start, FILLERS.stop, (count, REASONING), generator=rng)
    keys = torch.randint(KEYS.start, KEYS.stop, (count, 1), generator=rng)
    place = torch.randint(REASONING, (count, 1), generator=rng)
    reasoning = fillers.scatter(1, place, keys).tolist()
    sequences = [
        {"before": [START], "reasoning": r, "conclude": [EQUALS], "answer": k}
        for r, k in zip(reasoning, keys.tolist(), strict=True)
    ]
    return rollouts_of(sequences), place.flatten() + 1


@pytest.fixture(scope="session")
def copying_model():
    """(model, draw) trained for a few seconds until it copies the key."""
    torch.manual_seed(0)
    config = Qwen2Config(
        vocab_size=24,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=2,
        max_position_embeddings=32,
        tie_word_embeddings=False,
    )
    model = Qwen2ForCausalLM(config)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for step in range(150):
        rollouts, _ = draw_copies(64, seed=1000 + step)
        logits = model(rollouts.token_ids).logits[:, -2]
        loss = torch.nn.functional.cross_entropy(logits, rollouts.token_ids[:, -1])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if float(loss.detach()) < 1e-3:
            break
    rollouts, _ = draw_copies(64, seed=1)
    with torch.no_grad():
        predicted = model(rollouts.token_ids).logits[:, -2].argmax(-1)
    assert (predicted == rollouts.token_ids[:, -1]).all()
    model.zero_grad()
    return model.eval(), draw_copies
