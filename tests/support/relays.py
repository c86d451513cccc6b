"""A policy written down, not trained: it copies a decision once or twice, so what decides its answer is known.

Texts are START, filler, decision, COPY, restatement, filler, EQUALS, answer. The policy draws each filler and the decision from
four tokens; COPY is followed by the decision's restatement, and EQUALS by the answer: that of the restatement (`relayed`), or
of the decision itself. One layer of attention does both copies by what a token is; positions and MLPs are zero.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import torch
from support.toy import rollouts_of
from transformers import GPT2Config, GPT2LMHeadModel

from oar_lightning.types import MathProblem, Rollouts

START, EQUALS, COPY, END = range(4)
KEYS = 4
DECISION, RESTATED, ANSWER, FILLER, TAIL = (range(i, i + KEYS) for i in (4, 8, 12, 16, 20))
CLASSES = {START: 0, EQUALS: 1, COPY: 2, END: 3}
CLASSES |= {t: 4 + n for n, tokens in enumerate((DECISION, RESTATED, ANSWER, FILLER, TAIL)) for t in tokens}
FOLLOWS = {0: 7, 7: 4, 4: 2, 2: 5, 5: 8, 8: 1, 1: 6, 6: 3, 3: 3}
"""Class of a token -> class of the next one."""
NAMES = ["^", "=", "copy", "$", *"abcd", *"efgh", *"ijkl", *"0123", *"4567"]
"""The fillers are digits: no control finds the decision by its look."""

OWN, DULL, READ, WIDTH = 9, 13, 17, 21
"""Where a state holds the identity of a decision or its restatement, that of another token, and the identity that attention has
read; the token's class is in front."""


def relaying_policy(relayed: bool = True) -> Any:
    model = GPT2LMHeadModel(
        GPT2Config(
            vocab_size=len(NAMES),
            n_positions=16,
            n_embd=WIDTH,
            n_layer=1,
            n_head=1,
            n_inner=4,
            tie_word_embeddings=False,
            resid_pdrop=0.0,
            embd_pdrop=0.0,
            attn_pdrop=0.0,
            bos_token_id=None,
            eos_token_id=END,
        )
    ).double()
    block = model.transformer.h[0]
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.fill_(1.0 if "ln" in name and name.endswith("weight") else 0.0)
        embedding, head = model.transformer.wte.weight, model.lm_head.weight
        for token, kind in CLASSES.items():
            embedding[token, kind] = embedding[token, (OWN if kind in (4, 5) else DULL) + token % KEYS] = 1.0
        queries, keys, values = block.attn.c_attn.weight.split(WIDTH, dim=1)
        read = CLASSES[RESTATED[0]] if relayed else CLASSES[DECISION[0]]
        for asks, has in ((CLASSES[COPY], CLASSES[DECISION[0]]), (CLASSES[EQUALS], read)):
            queries[asks, has], keys[has, has] = 12.0, 6.0
        values[OWN:DULL, READ:WIDTH] = torch.eye(KEYS, dtype=torch.float64)
        block.attn.c_proj.weight[READ:WIDTH, READ:WIDTH] = 0.4 * torch.eye(KEYS, dtype=torch.float64)
        for token, kind in CLASSES.items():
            for before, after in FOLLOWS.items():
                head[token, before] = 6.0 * (after == kind)
            if kind in (5, 6):
                head[token, READ + token % KEYS] = 3.0
    return model.eval()


def relays(count: int, seed: int = 0) -> Rollouts:
    """Completions of different problems with their texts; the decision is in column 2, its restatement in column 4. Every other
    one is wrong: its problem asks for the answer of another decision."""
    rng = torch.Generator().manual_seed(seed)
    fillers = torch.randint(KEYS, (count, 2), generator=rng).tolist()
    picks = torch.randint(KEYS, (count,), generator=rng).tolist()
    sequences = [
        {
            "before": [START],
            "reasoning": [FILLER[a], DECISION[k], COPY, RESTATED[k], TAIL[b]],
            "conclude": [EQUALS],
            "answer": [ANSWER[k]],
        }
        for (a, b), k in zip(fillers, picks, strict=True)
    ]
    golds = [NAMES[ANSWER[(k + row % 2) % KEYS]] for row, k in enumerate(picks)]
    texts = [[NAMES[token] for part in list(s.values())[1:] for token in part] for s in sequences]
    rewards = torch.tensor([1.0 - row % 2 for row in range(count)])
    spans = []
    for text in texts:
        ends = torch.tensor([len(piece) for piece in text]).cumsum(0).tolist()
        spans.append(tuple(zip([0, *ends], ends, strict=False)))
    return dataclasses.replace(
        rollouts_of(sequences),
        problems=tuple(MathProblem(f"{row}", gold) for row, gold in enumerate(golds)),
        completions=tuple("".join(text) for text in texts),
        token_spans=tuple(spans),
        rewards=rewards,
        reward_terms=rewards[:, None],
        advantages=2 * rewards - 1,
        group_size=1,
    )
