"""Digests of policies."""

from __future__ import annotations

from pathlib import Path

import torch
from support.fixtures import tiny_policy

from oar_lightning.policy.fingerprint import (
    SAMPLED,
    architecture,
    policy_fingerprint,
    sampled_fingerprint,
    tokenizer_fingerprint,
)
from oar_lightning.policy.pretrained import PretrainedPolicy, export_policy


def test_a_policy_has_one_fingerprint() -> None:
    model, tokenizer = tiny_policy()
    first = policy_fingerprint(model, tokenizer)
    assert policy_fingerprint(*tiny_policy()) == first != policy_fingerprint(model) == policy_fingerprint(tiny_policy().model)
    with torch.no_grad():
        next(model.parameters())[0, 0] += 1e-6
    assert policy_fingerprint(model, tokenizer) != first
    assert policy_fingerprint(tiny_policy().model.bfloat16(), tokenizer) not in (first, policy_fingerprint(model, tokenizer))


def test_a_sample_tells_weights_apart_that_differ_everywhere() -> None:
    weights = {"a": torch.arange(3 * SAMPLED + 1.0), "b": torch.ones((), dtype=torch.bfloat16), "c": torch.ones(0)}
    first = sampled_fingerprint(weights)
    assert sampled_fingerprint(dict(reversed(weights.items()))) == first
    others = [weights | {"a": weights["a"] * (1 + 1e-6)}, weights | {"b": torch.tensor(2.0)}, weights | {"d": torch.ones(1)}]
    assert len({first, *map(sampled_fingerprint, others)}) == 4
    moved = weights["a"].clone()
    moved[1] += 1
    assert sampled_fingerprint(weights | {"a": moved}) == first, "one of many values may not be read"


def test_a_forward_pass_is_another_by_its_config_alone(tmp_path: Path) -> None:
    """Not by the folder that it was loaded from."""
    policy, other = tiny_policy(), tiny_policy()
    export_policy(*policy, tmp_path)
    assert architecture(PretrainedPolicy(str(tmp_path)).load().model) == architecture(policy.model)
    other.model.config.rope_theta = 5e5
    assert policy_fingerprint(other.model) == policy_fingerprint(policy.model)
    assert architecture(other.model) != architecture(policy.model)


def test_a_policy_that_is_asked_in_another_way_is_another() -> None:
    model, tokenizer = tiny_policy()
    asked = tokenizer_fingerprint(tokenizer)
    first = policy_fingerprint(model, tokenizer)
    tokenizer.chat_template = "{{ messages[0].content }}"
    second = policy_fingerprint(model, tokenizer)
    tokenizer.chat_template = "Q: {{ messages[0].content }}"
    assert len({first, second, policy_fingerprint(model, tokenizer)}) == 3
    assert tokenizer_fingerprint(tokenizer) != asked
