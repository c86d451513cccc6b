"""The longest prompt that leaves room for a completion."""

from __future__ import annotations

from support.fixtures import tiny_policy
from support.growing_texts import GROWING

from oar_lightning.policy.language_model import positions_of
from oar_lightning.rollout import AutoEngineConfig, SamplingConfig, longest_prompt
from oar_lightning.rollout.vllm import VllmConfig


def test_the_policys_positions_and_the_engines_limit_bound_a_prompt() -> None:
    model, sampling = tiny_policy().model, SamplingConfig(max_new_tokens=12)
    positions = positions_of(model)
    assert positions is not None
    assert longest_prompt(model, sampling, AutoEngineConfig()) == positions - 12
    assert longest_prompt(model, sampling, VllmConfig(max_model_len=64)) == 52
    assert longest_prompt(GROWING["alibi"](), sampling, AutoEngineConfig()) is None
