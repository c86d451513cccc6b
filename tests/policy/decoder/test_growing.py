"""Texts that grow token by token, while rows come and go, against a pass of the model over each whole text."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from support.decoders import SIZES
from support.toy import gpt2
from transformers import (
    BloomConfig,
    BloomForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from oar_lightning.policy.decoder import GrowingTexts, growing_texts, recorded
from oar_lightning.policy.decoder.growing import ModuleTexts, PlainTexts
from oar_lightning.policy.decoder.recorded import RecordedTexts, can_record
from oar_lightning.policy.language_model import base_model

UNGROUPED = SIZES | {"num_key_value_heads": 4}
GELU = Qwen2Config(**SIZES, hidden_act="gelu")


def lora() -> Any:
    peft = pytest.importorskip("peft")
    model = peft.get_peft_model(
        Qwen2ForCausalLM(Qwen2Config(**SIZES)), peft.LoraConfig(target_modules=["q_proj"], init_lora_weights=False)
    )
    return model.eval()


MODELS = {
    "qwen2": (lambda: Qwen2ForCausalLM(Qwen2Config(**SIZES)).eval(), PlainTexts),
    "qwen3": (lambda: Qwen3ForCausalLM(Qwen3Config(**SIZES, head_dim=16)).eval(), PlainTexts),
    "llama, ungrouped": (lambda: LlamaForCausalLM(LlamaConfig(**UNGROUPED)).eval(), PlainTexts),
    "float64": (lambda: Qwen2ForCausalLM(Qwen2Config(**SIZES)).double().eval(), ModuleTexts),
    "eager": (lambda: Qwen2ForCausalLM._from_config(GELU, attn_implementation="eager").eval(), ModuleTexts),
    "lora": (lora, ModuleTexts),
    "learned positions": (lambda: gpt2().eval(), ModuleTexts),
    "alibi": (lambda: BloomForCausalLM(BloomConfig(vocab_size=40, hidden_size=32, n_layer=2, n_head=4)).eval(), ModuleTexts),
}


def alone(model: Any, ids: list[int]) -> torch.Tensor:
    """The model's own hidden states of a text, without a cache."""
    device = model.get_input_embeddings().weight.device
    return base_model(model).get_decoder()(torch.tensor([ids], device=device), use_cache=False).last_hidden_state[0]


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("first", [[0, 0, 0], [0, 2, 5]])
@torch.no_grad()
def test_states_are_those_of_a_pass_over_the_whole_text(name: str, first: list[int]) -> None:
    torch.manual_seed(0)
    make, kind = MODELS[name]
    model = make()
    texts = growing_texts(model, torch.tensor(first), 7 + 12)
    assert type(texts) is kind
    check_growth(model, texts, first)


ON_A_GPU = pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU here"))


@pytest.mark.parametrize("name", ["qwen2", "qwen3", "llama, ungrouped", "float64", "lora", "learned positions"])
@pytest.mark.parametrize("first", [[0, 0, 0], [0, 2, 5]])
@pytest.mark.parametrize("device", ["cpu", ON_A_GPU])
@torch.no_grad()
def test_recorded_steps_find_the_same(
    name: str, first: list[int], device: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """On a CPU a step is not recorded, but runs at the same fixed places. Steps are made anew for other rows and columns."""
    monkeypatch.setattr("oar_lightning.policy.key_value_cache.LEAST_ROOM", 2)
    monkeypatch.setattr("oar_lightning.policy.decoder.recorded.LEAST_COLUMNS", 1)
    torch.manual_seed(0)
    model = MODELS[name][0]().to(device)
    assert can_record(model) == (device == "cuda")
    texts = RecordedTexts(model, torch.tensor(first, device=device), 7 + 12)
    steps = []
    made = recorded._Step
    monkeypatch.setattr(recorded, "_Step", lambda *args: steps.append(args) or made(*args))
    check_growth(model, texts, first)
    assert not caplog.text
    assert len(steps) == 2, "for seven rows, which five use, too, and for two"


@torch.no_grad()
def test_a_recorded_step_that_finds_something_else_is_not_used(caplog: pytest.LogCaptureFixture) -> None:
    """Its keys do not stay in the cache either."""
    model = MODELS["qwen2"][0]()

    class Other(RecordedTexts):
        def run_decoder(self, **inputs: Any) -> torch.Tensor:
            return super().run_decoder(**inputs | {"position_ids": inputs["position_ids"] + 3})

    texts = Other(model, torch.tensor([0, 2, 5]), 7 + 40)
    check_growth(model, texts, [0, 2, 5])
    assert "computes something else when its decoding steps are recorded" in caplog.text


@pytest.mark.parametrize("error", [recorded.NotRecorded("a value is needed"), torch.OutOfMemoryError("no memory")])
@pytest.mark.parametrize("first_fails", [True, False])
@torch.no_grad()
def test_the_modules_read_on_where_a_step_cannot_be_recorded(
    error: Exception, first_fails: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Also where the first step could and a later one, for other rows, cannot."""
    model = MODELS["qwen2"][0]()
    texts = RecordedTexts(model, torch.tensor([0, 2, 5]), 7 + 40)
    made = recorded._Step

    def make(texts: RecordedTexts, token_ids: torch.Tensor) -> Any:
        if first_fails or len(token_ids) == 2:
            raise error
        return made(texts, token_ids)

    monkeypatch.setattr(recorded, "_Step", make)
    check_growth(model, texts, [0, 2, 5])
    assert len(caplog.records) == 1
    assert f"could not be recorded ({error})" in caplog.text


def check_growth(model: Any, texts: GrowingTexts, first: list[int]) -> None:
    """Let three texts grow while rows come and go, and hold each column's states against a pass over the whole text."""
    rng = torch.Generator().manual_seed(1)
    device = texts.first.device
    prompts = torch.randint(40, (3, 7), generator=rng)
    read = texts(prompts.to(device))
    own = [prompts[row, first[row] :].tolist() for row in range(3)]

    def check(hidden: torch.Tensor) -> None:
        """The states of the last columns."""
        for ids, actual in zip(own, hidden, strict=True):
            expected = alone(model, ids)[-len(actual) :]
            torch.testing.assert_close(actual[-len(expected) :], expected, rtol=1e-4, atol=1e-4)

    check(read)
    for rows, columns in (([0, 1, 2, 0, 1, 2, 2], 1), ([0, 1, 6, 3, 4], 1), ([0, 1, 2, 3, 4], 3), ([4, 1], 1), ([1], 2)):
        texts.select(torch.tensor(rows, device=device))
        new = torch.randint(40, (len(rows), columns), generator=rng)
        own = [own[row] + ids for row, ids in zip(rows, new.tolist(), strict=True)]
        check(texts(new.to(device)))
    assert texts.width == 7 + 8


@torch.no_grad()
def test_weights_and_embeddings_stay_as_they_are() -> None:
    """The plain decoder writes in place."""
    model = MODELS["qwen2"][0]()
    before = {name: x.clone() for name, x in model.state_dict().items()}
    texts = growing_texts(model, torch.zeros(2, dtype=torch.long), 9)
    texts(torch.arange(8).view(2, 4))
    texts(torch.zeros(2, 1, dtype=torch.long))
    assert all(torch.equal(x, before[name]) for name, x in model.state_dict().items())
