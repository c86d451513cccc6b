"""The plain decoder computes what the modules of `transformers` do; where it might not, the modules run."""

from __future__ import annotations

import warnings

import pytest
import torch
from support.decoders import FAMILIES, SIZES, random_model
from support.fixtures import built_in_policy
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
)

from oar_lightning.policy import products
from oar_lightning.policy.decoder import (
    ModuleDecoder,
    PlainDecoder,
    choose_decoder,
    empty_past,
    join,
    learning_decoder,
    plain_decoder,
    states_before,
)
from oar_lightning.policy.language_model import embed, scoring_mode
from oar_lightning.policy.lm_head import token_logprobs
from oar_lightning.policy.products import PackedWeights, Weights


def make(family, dtype=torch.float64):
    """Random weights, norms and biases included; a decoder with each."""
    model = random_model(family, dtype)
    plain = plain_decoder(model)
    assert isinstance(plain, PlainDecoder)
    return model, plain, ModuleDecoder(model)


def everywhere(rows, width):
    columns = torch.arange(width).expand(rows, -1)
    return columns, torch.ones_like(columns, dtype=torch.bool)


def close(actual, expected):
    """The families' norms and rotary tables work in float32."""
    torch.testing.assert_close(actual, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("first", [[0, 0, 0], [0, 2, 5]])
def test_plain_equals_modules(family, first):
    """Prompts, then suffixes on chosen rows of them, states at chosen columns; with padding and without."""
    model, plain, modules = make(family)
    rng = torch.Generator().manual_seed(1)
    ids, suffix = torch.randint(40, (3, 9), generator=rng), torch.randint(40, (4, 6), generator=rng)
    rows, reads = torch.tensor([2, 0, 2, 1]), torch.tensor([[5, 2], [0, 0], [1, 3], [4, 5]])
    read_at = reads, torch.ones_like(reads, dtype=torch.bool)
    results = []
    with torch.no_grad(), scoring_mode(model):
        for decoder in (plain, modules):
            states, past = decoder(empty_past(torch.tensor(first)), embed(model, ids), everywhere(3, 9), keep=True)
            assert past.width == 9
            own = past.select(rows, 8)
            after, longer = decoder(own, embed(model, suffix), read_at, keep=True)
            assert longer.width == 14
            assert own.width == 8
            again, nothing = decoder(past.select(rows, 8), embed(model, suffix), read_at)
            assert nothing is None
            torch.testing.assert_close(again, after, rtol=0, atol=1e-12)
            real = past.real(9)
            results.append((states[real], after))
    for actual, expected in zip(*results, strict=True):
        close(actual, expected)


@pytest.mark.parametrize("family", FAMILIES)
def test_tokens_that_stand_alone_see_what_precedes_their_place(family):
    """As a text that ends with the replacement does."""
    model, plain, modules = make(family)
    ids = torch.randint(40, (2, 8), generator=torch.Generator().manual_seed(2))
    first, places, fill = torch.tensor([0, 2]), torch.tensor([[3, 7, 4], [2, 5, 6]]), 11
    with torch.no_grad(), scoring_mode(model):
        for decoder in (plain, modules):
            _, past = decoder(empty_past(first), embed(model, ids), everywhere(2, 8), keep=True)
            records = []
            decoder(past, embed(model, torch.full_like(places, fill)), everywhere(2, 1), records=records, alone_at=places)
            for row in range(2):
                for i, place in enumerate(places[row].tolist()):
                    text = ids[row : row + 1, first[row] : place + 1].clone()
                    text[0, -1] = fill
                    alone = plain(empty_past(torch.zeros(1).long()), embed(model, text), everywhere(1, 1), keep=True)[1]
                    for layer, record in enumerate(records):
                        # values: the plain decoder keeps the parts of a key in another order
                        close(record.value[row, :, 8 + i], alone.values[layer][0, :, -1])


@pytest.mark.parametrize("first", [[0, 0], [0, 2]])
@pytest.mark.parametrize("decoder", [PlainDecoder, ModuleDecoder])
def test_long_attention_in_blocks_is_that_of_all_queries_at_once(decoder, first, monkeypatch):
    """After a past, with padding and without; tokens that stand alone; states, records and gradients."""
    model, *decoders = make("qwen2")
    run = next(one for one in decoders if isinstance(one, decoder))
    rng = torch.Generator().manual_seed(4)
    ids, more = torch.randint(40, (2, 4), generator=rng), torch.randint(40, (2, 7), generator=rng)
    reads = torch.arange(6).expand(2, -1), torch.ones(2, 6, dtype=torch.bool)  # most columns: the last layer runs all
    places = torch.tensor([[3, 4, 6, 8, 10], [3, 3, 5, 9, 0]])

    def found():
        with scoring_mode(model):
            _, past = run(empty_past(torch.tensor(first)), embed(model, ids).detach(), everywhere(2, 4), keep=True)
            embeds, records = embed(model, more).detach().requires_grad_(), []
            states, longer = run(past, embeds, reads, keep=True)
            (gradient,) = torch.autograd.grad(states.square().sum(), embeds)
            run(longer.detach(), embed(model, places), everywhere(2, 1), records=records, alone_at=places)
        return [states, gradient, *(record.out for record in records), *(record.value for record in records)]

    expected = found()
    for size in (2, 3):
        monkeypatch.setattr("oar_lightning.policy.decoder.past.BLOCK", size)
        for actual, wanted in zip(found(), expected, strict=True):
            torch.testing.assert_close(actual, wanted, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("family", FAMILIES)
def test_gradients_and_records(family):
    model, plain, modules = make(family)
    ids = torch.randint(40, (2, 7), generator=torch.Generator().manual_seed(3))
    gradients, outs = [], []
    for decoder in (plain, modules):
        with scoring_mode(model):
            embeds = embed(model, ids).detach().requires_grad_()
            records = []
            states, _ = decoder(empty_past(torch.tensor([0, 1])), embeds, everywhere(2, 7), records=records)
            (gradient,) = torch.autograd.grad(states[:, -1].square().sum(), embeds)
        gradients.append(gradient)
        outs.append([record.out for record in records])
        assert len(records) == 3
        for record in records:
            softmax = torch.softmax(
                record.query[:, :, -1:] @ record.key.repeat_interleave(4 // record.key.shape[1], 1).mT * record.scaling, -1
            )
            assert record.columns.shape == (2, 7)
            torch.testing.assert_close(
                (softmax[:1] @ record.value[:1].repeat_interleave(4 // record.value.shape[1], 1)).transpose(1, 2),
                record.out[:1, -1:],
            )
    torch.testing.assert_close(gradients[0], gradients[1], rtol=1e-4, atol=1e-4)
    for actual, expected in zip(*outs, strict=True):
        close(actual[:, 1:], expected[:, 1:])
    assert all(parameter.grad is None for parameter in model.parameters())


@pytest.mark.skipif(not torch.backends.mkldnn.is_available(), reason="this build of torch has no oneDNN")
def test_weights_are_packed_unless_that_gains_nothing(monkeypatch):
    monkeypatch.setattr(products, "LEAST", 1)
    model = random_model("qwen2", torch.float32)
    for pack, kind in ((True, PackedWeights), (False, Weights)):
        for layer in choose_decoder(model, pack).layers:
            weights = (layer.qkv, layer.output, layer.gate_up, layer.down)
            assert {type(w) for w in weights} == {kind}
            assert not any(w.matrix.requires_grad for w in weights)


def test_joined_pasts():
    model, plain, _ = make("qwen2")
    ids = torch.randint(40, (3, 5), generator=torch.Generator().manual_seed(4))
    whole = plain(empty_past(torch.tensor([0, 1, 2])), embed(model, ids), everywhere(3, 1), keep=True)[1]
    parts = [
        plain(empty_past(whole.first[i : i + 1]), embed(model, ids[i : i + 1]), everywhere(1, 1), keep=True)[1]
        for i in range(3)
    ]
    for actual, expected in zip(join(parts).keys, whole.keys, strict=True):
        torch.testing.assert_close(actual, expected)
    assert join(parts).first.tolist() == [0, 1, 2]


def lora(model):
    peft = pytest.importorskip("peft")
    return peft.get_peft_model(model, peft.LoraConfig(target_modules=["q_proj"]))


def hooked(model):
    model.model.layers[1].mlp.register_forward_hook(lambda module, args, out: out)
    return model


UNLIKE = {
    "lora": lora,
    "hooks": hooked,
    "sliding window": lambda _: Qwen2ForCausalLM(
        Qwen2Config(**SIZES, use_sliding_window=True, sliding_window=6, max_window_layers=1)
    ),
    "dynamic angles": lambda _: LlamaForCausalLM(
        LlamaConfig(**SIZES, rope_parameters={"rope_type": "dynamic", "rope_theta": 100.0, "factor": 2.0})
    ),
    "activation": lambda _: Qwen2ForCausalLM(Qwen2Config(**SIZES, hidden_act="gelu")),
    "mlp bias": lambda _: LlamaForCausalLM(LlamaConfig(**SIZES, mlp_bias=True)),
    "float64": lambda model: model.double(),
    "bfloat16": lambda model: model.bfloat16(),
}
PRECISIONS = {"float64", "bfloat16"}


@pytest.mark.parametrize("difference", UNLIKE)
def test_anything_unlike_runs_its_modules(difference):
    assert isinstance(choose_decoder(FAMILIES["qwen2"]()), PlainDecoder)
    assert isinstance(choose_decoder(UNLIKE[difference](FAMILIES["qwen2"]())), ModuleDecoder)


def test_autocast_runs_the_modules():
    with torch.autocast("cpu", torch.bfloat16):
        assert isinstance(choose_decoder(FAMILIES["qwen2"]()), ModuleDecoder)


def test_a_model_too_large_to_copy_runs_its_modules(monkeypatch):
    monkeypatch.setattr("oar_lightning.policy.decoder.build_plain.WEIGHTS_BYTES", 1000)
    assert isinstance(choose_decoder(FAMILIES["qwen2"]()), ModuleDecoder)


def test_a_namesake_that_computes_something_else_is_found_out(caplog):
    model = FAMILIES["qwen2"]().eval()
    forward = model.model.layers[0].mlp.forward
    model.model.layers[0].mlp.forward = lambda x: 2 * forward(x)
    with caplog.at_level("WARNING"):
        assert isinstance(choose_decoder(model), ModuleDecoder)
    assert "computes something else" in caplog.text


def test_a_policy_that_has_diverged_runs_its_modules(caplog):
    model = FAMILIES["qwen2"]()
    torch.nn.init.constant_(model.get_input_embeddings().weight, torch.nan)
    with caplog.at_level("WARNING"):
        assert isinstance(choose_decoder(model), ModuleDecoder)
    assert not caplog.text, "it is no other model"


def test_the_plain_decoder_is_the_default_of_the_built_in_policy():
    assert isinstance(choose_decoder(built_in_policy().model), PlainDecoder)


LEARNING = {"padding": [[0, 10], [3, 13], [1, 8]], "no padding": [[0, 13], [0, 13], [0, 13]]}


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("spans", LEARNING.values(), ids=LEARNING)
@pytest.mark.parametrize("starts", [[5, 7, 4], [9, 9, 7], [5, 13, 4]], ids=["most columns are read", "a few", "none of a row"])
@pytest.mark.parametrize("least_work", [1, 2**62], ids=["oneDNN", "torch"])
def test_gradients_to_the_weights_are_those_of_the_modules(family, spans, starts, least_work, monkeypatch):
    """Log-probabilities of some tokens, and the gradient of their sum, by the plain form and by the modules."""
    monkeypatch.setattr(products, "LEAST_WORK", least_work)
    padded = least_work == 1  # oneDNN is for float32, and gets 40 rows in place of 39
    model, _, _ = make(family, torch.float32 if padded else torch.float64)
    ids = torch.randint(40, (3, 13), generator=torch.Generator().manual_seed(2))
    columns = torch.arange(13)
    attention = torch.stack([(columns >= start) & (columns < end) for start, end in spans])
    mask = attention & (columns >= torch.tensor(starts)[:, None])
    decoder = learning_decoder(model)
    assert decoder.layers[0].gate_up.rows(39) == (40 if padded else 39)
    found = []
    for states in (None, states_before(model, decoder, ids, attention, mask)):
        logprobs, _ = token_logprobs(model, ids, attention, mask, states=states)
        logprobs.sum().backward()
        found.append((logprobs.detach(), {name: p.grad.clone() for name, p in model.named_parameters()}))
        model.zero_grad()
    (expected, gradients), (actual, own) = found
    close(actual, expected)
    for name, gradient in gradients.items():
        assert gradient.norm() > 0, name
        assert (own[name] - gradient).norm() <= 1e-4 * gradient.norm(), name


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_pass_that_reads_nothing_has_gradients_of_zero(dtype, monkeypatch):
    monkeypatch.setattr(products, "LEAST_WORK", 1)
    model, _, _ = make("qwen2", dtype)
    ids, attention = torch.ones(3, 13, dtype=torch.long), torch.ones(3, 13, dtype=torch.bool)
    states = states_before(model, learning_decoder(model), ids, attention, torch.zeros_like(attention))
    assert states.shape == (0, model.config.hidden_size)
    states.sum().backward()
    assert not model.model.layers[0].mlp.down_proj.weight.grad.any()


def test_states_of_a_row_with_a_gap_are_left_to_the_modules():
    model, plain, _ = make("qwen2")
    ids, attention = torch.ones(1, 5, dtype=torch.long), torch.tensor([[True, False, True, True, True]])
    assert states_before(model, plain, ids, attention, torch.tensor([[False, False, False, True, True]])) is None


@pytest.mark.parametrize(
    "difference", [*(name for name in UNLIKE if name not in PRECISIONS), "dropout", "checkpointing", "large"]
)
def test_what_the_plain_form_does_not_do_learns_by_its_modules(difference, monkeypatch):
    model = FAMILIES["qwen2"]()
    with warnings.catch_warnings(action="error"):
        assert learning_decoder(model) is not None
    if difference == "dropout":
        model.config.attention_dropout = 0.1
    elif difference == "checkpointing":
        model.gradient_checkpointing_enable()
    elif difference == "large":
        monkeypatch.setattr("oar_lightning.policy.decoder.build_plain.LEARNING_BYTES", 1000)
    else:
        model = UNLIKE[difference](model)
    assert learning_decoder(model) is None
