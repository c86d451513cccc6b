"""Digests of policies."""

from __future__ import annotations

import torch
from support.fixtures import tiny_policy

from oar_lightning.policy.fingerprint import policy_fingerprint


def test_a_policy_has_one_fingerprint() -> None:
    model, tokenizer = tiny_policy()
    first = policy_fingerprint(model, tokenizer)
    assert policy_fingerprint(*tiny_policy()) == first != policy_fingerprint(model) == policy_fingerprint(tiny_policy().model)
    with torch.no_grad():
        next(model.parameters())[0, 0] += 1e-6
    assert policy_fingerprint(model, tokenizer) != first
    assert policy_fingerprint(tiny_policy().model.bfloat16(), tokenizer) not in (first, policy_fingerprint(model, tokenizer))


def test_a_policy_that_is_asked_in_another_way_is_another() -> None:
    model, tokenizer = tiny_policy()
    first = policy_fingerprint(model, tokenizer)
    tokenizer.chat_template = "{{ messages[0].content }}"
    second = policy_fingerprint(model, tokenizer)
    tokenizer.chat_template = "Q: {{ messages[0].content }}"
    assert len({first, second, policy_fingerprint(model, tokenizer)}) == 3
