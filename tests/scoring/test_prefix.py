"""Shared prefixes give the same counterfactual scores as full-length ones, where the cache allows sharing."""

from __future__ import annotations

import pytest
import torch
from toy import gpt2, rollouts_of
from transformers import LlamaConfig, LlamaForCausalLM, Qwen2Config, Qwen2ForCausalLM

from oar_lightning.language_model import can_share_prefixes
from oar_lightning.scoring import OarP
from oar_lightning.scoring.counterfactual import Counterfactuals
from oar_lightning.scoring.prefix import SharedPrefix
from oar_lightning.scoring.probes import PROBES
from oar_lightning.scoring.texts import texts_until_answer

SIZES = {
    "vocab_size": 40,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
}


def sliding_qwen2() -> Qwen2ForCausalLM:
    return Qwen2ForCausalLM(Qwen2Config(**SIZES, use_sliding_window=True, sliding_window=6, max_window_layers=1))


FAMILIES = {
    "qwen2": lambda: Qwen2ForCausalLM(Qwen2Config(**SIZES)),
    "llama": lambda: LlamaForCausalLM(LlamaConfig(**SIZES)),
    "gpt2": gpt2,
}


def texts(seed: int = 0):
    """Five texts of different lengths, one without a conclusion, one whose reasoning starts at once."""
    rng = torch.Generator().manual_seed(seed)
    shapes = [(4, 9, 2, 3), (1, 17, 0, 1), (6, 1, 1, 2), (3, 12, 3, 1), (2, 8, 0, 4)]
    names = ("before", "reasoning", "conclude", "answer")
    draw = lambda n: torch.randint(2, 40, (n,), generator=rng).tolist()  # noqa: E731
    return rollouts_of([dict(zip(names, map(draw, shape), strict=True)) for shape in shapes])


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("probe", PROBES)
@pytest.mark.parametrize("token_budget", [1, 60, 10**6])
def test_shared_prefixes_change_no_score(family, probe, token_budget):
    model = FAMILIES[family]().double().eval()
    assert can_share_prefixes(model)
    rollouts = texts()
    with torch.no_grad():
        text = texts_until_answer(rollouts)
        full, full_tokens = Counterfactuals(0, 10**6, 0).distances(model, text, PROBES[probe], text.reasoning)
        assert max(float(s.max()) for s in full) > 1e-4
        for block in (1, 5, 100):
            scores, tokens = Counterfactuals(0, token_budget, block).distances(model, text, PROBES[probe], text.reasoning)
            for a, b in zip(scores, full, strict=True):
                # Qwen2's and Llama's norms and rotary tables work in float32 inside
                torch.testing.assert_close(a, b, rtol=1e-4, atol=3e-6 if family != "gpt2" else 1e-12)
    if token_budget == 60:
        assert tokens < full_tokens


def test_models_with_a_sliding_window_fall_back_to_full_length():
    model = sliding_qwen2().double().eval()
    assert not can_share_prefixes(model)
    rollouts = texts()
    torch.testing.assert_close(OarP(block=4)(model, rollouts), OarP(block=0)(model, rollouts), rtol=0, atol=0)


def test_continuations_leave_the_prefix_as_it_was():
    model = gpt2().eval()
    ids = torch.randint(1, 40, (3, 12), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        prefix = SharedPrefix(model, ids)
        prefix.advance(5)
        rows = torch.tensor([2, 0, 2])
        first = prefix.hidden_after(rows, ids[rows, 5:9])
        again = prefix.hidden_after(rows, ids[rows, 5:9])
        assert prefix.advance(5) == 0
        assert prefix.advance(8) == 9
        later = prefix.hidden_after(rows, ids[rows, 8:9])
        whole = model.get_decoder()(input_ids=ids[rows, :9]).last_hidden_state
    torch.testing.assert_close(first, again, rtol=0, atol=0)
    torch.testing.assert_close(first, whole[:, 5:], rtol=0, atol=1e-12)
    torch.testing.assert_close(later, whole[:, 8:], rtol=0, atol=1e-12)


def test_block_is_checked():
    with pytest.raises(ValueError, match=r"scorer\.block"):
        OarP(block=-1)
