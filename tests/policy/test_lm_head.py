"""Log-probabilities through decoder and head against the model's own forward pass and against TRL."""

from __future__ import annotations

import contextlib
import copy

import pytest
import torch
from support.toy import floats, golden, gpt2
from transformers import (
    AutoModelForCausalLM,
    CohereConfig,
    Gemma2Config,
    GPT2Config,
    GraniteConfig,
    LlamaConfig,
    Qwen2Config,
    Qwen2ForCausalLM,
)

from oar_lightning.objective.loss import Denominators, LossConfig, LossInputs, policy_loss
from oar_lightning.policy import attention, lm_head
from oar_lightning.policy.language_model import hidden_states, prediction_states, scoring_mode
from oar_lightning.policy.lm_head import check_head, head_logits, token_logprobs

TRL = golden("trl_end_to_end")
SMALL = {
    "vocab_size": 40,
    "hidden_size": 16,
    "intermediate_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "max_position_embeddings": 64,
    "initializer_range": 0.3,
    "bos_token_id": None,
    "eos_token_id": None,
    "pad_token_id": None,
}
FAMILIES = {
    "qwen2": lambda: Qwen2Config(**SMALL, tie_word_embeddings=True),
    "llama": lambda: LlamaConfig(**SMALL, tie_word_embeddings=False),
    "gpt2": lambda: GPT2Config(
        vocab_size=40,
        n_positions=64,
        n_embd=16,
        n_layer=2,
        n_head=2,
        initializer_range=0.4,
        bos_token_id=None,
        eos_token_id=None,
    ),
    # soft caps of attention and logits small enough to matter for logits of order 1
    "gemma2": lambda: Gemma2Config(
        **SMALL, head_dim=8, final_logit_softcapping=0.5, attn_logit_softcapping=2.0, query_pre_attn_scalar=8, sliding_window=4
    ),
    "granite": lambda: GraniteConfig(**SMALL, logits_scaling=4.0, embedding_multiplier=3.0, residual_multiplier=0.5),
    "cohere": lambda: CohereConfig(**SMALL, logit_scale=0.25),
}


def tiny(family: str):
    torch.manual_seed(3)
    return AutoModelForCausalLM.from_config(
        FAMILIES[family](), attn_implementation="eager" if family == "gemma2" else "sdpa"
    ).eval()


def left_padded_batch(vocab_size=40):
    """Three rows of 12 columns with 0, 4 and 7 pads; the last five or fewer tokens are asked for, with a gap."""
    token_ids = torch.randint(1, vocab_size, (3, 12))
    attention = torch.ones(3, 12, dtype=torch.bool)
    attention[1, :4] = attention[2, :7] = False
    attention[1, -2:] = False
    mask = torch.zeros_like(attention)
    mask[0, 5:12] = mask[1, 6:10] = mask[2, 9:12] = True
    mask[0, 7] = False
    return token_ids.masked_fill(~attention, 0), attention, mask


def plain_logprobs(model, token_ids, attention, mask, temperature=1.0):
    """Row by row without padding: log softmax of the model's own logits, gathered, and the entropy before each token."""
    logprobs, entropies = torch.zeros(2, *token_ids.shape, dtype=next(model.parameters()).dtype).unbind()
    for i in range(len(token_ids)):
        real = attention[i].nonzero().flatten()
        log_p = (model(token_ids[i, real][None]).logits[0] / temperature).log_softmax(-1)
        for k, column in enumerate(real.tolist()):
            if mask[i, column]:
                place = (torch.tensor(i), torch.tensor(column))
                logprobs = logprobs.index_put(place, log_p[k - 1, token_ids[i, column]])
                entropies = entropies.index_put(place, -(log_p[k - 1].exp() * log_p[k - 1]).sum())
    return logprobs, entropies


def gradients(model, value):
    found = torch.autograd.grad(value, list(model.parameters()), allow_unused=True)
    return torch.cat([g.flatten() for g in found if g is not None])


@pytest.mark.parametrize("tokens_per_chunk", [None, 1, 3, 13])
@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_values_and_parameter_gradients(tokens_per_chunk, temperature, monkeypatch):
    """In one piece, or in checkpointed chunks that are recomputed in the backward pass."""
    if tokens_per_chunk:
        monkeypatch.setattr(lm_head, "LOGITS_CHUNK_BYTES", 4 * 40 * tokens_per_chunk)
    checkpoints = []
    original = lm_head.checkpoint
    monkeypatch.setattr(lm_head, "checkpoint", lambda *a, **k: checkpoints.append(1) or original(*a, **k))
    model = gpt2(dropout=0.0)
    token_ids, attention, mask = left_padded_batch()
    expected = plain_logprobs(model, token_ids, attention, mask, temperature)
    actual = token_logprobs(model, token_ids, attention, mask, temperature, entropy_grad=True)
    # 13 tokens are asked for
    assert len(checkpoints) == {None: 0, 1: 13, 3: 5, 13: 0}[tokens_per_chunk]
    torch.testing.assert_close(actual, expected, rtol=0, atol=1e-11)
    cotangents = torch.randn(2, *token_ids.shape, dtype=torch.float64)
    slopes = [
        gradients(model, sum((v * c).sum() for v, c in zip(pair, cotangents, strict=True))) for pair in (actual, expected)
    ]
    torch.testing.assert_close(slopes[0], slopes[1], rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("tokens_per_chunk", [None, 3])
def test_entropy_carries_gradient_only_if_asked(tokens_per_chunk, monkeypatch):
    if tokens_per_chunk:
        monkeypatch.setattr(lm_head, "LOGITS_CHUNK_BYTES", 4 * 40 * tokens_per_chunk)
    model = gpt2(dropout=0.0)
    batch = left_padded_batch()
    logprobs, entropy = token_logprobs(model, *batch)
    alone = gradients(model, logprobs.sum())
    logprobs, entropy = token_logprobs(model, *batch)
    assert not entropy.requires_grad or not gradients(model, entropy.sum()).any()
    logprobs, entropy = token_logprobs(model, *batch)
    both = gradients(model, logprobs.sum() + entropy.sum()) if entropy.requires_grad else gradients(model, logprobs.sum())
    torch.testing.assert_close(both, alone, rtol=0, atol=1e-12)
    asked = token_logprobs(model, *batch, entropy_grad=True)[1]
    assert gradients(model, asked.sum()).abs().max() > 1e-3


def test_zero_outside_the_mask_and_an_empty_mask():
    model = gpt2(dropout=0.0)
    token_ids, attention, mask = left_padded_batch()
    logprobs, entropy = token_logprobs(model, token_ids, attention, mask)
    assert not logprobs[~mask].any()
    assert not entropy[~mask].any()
    assert (logprobs[mask] < 0).all()
    assert (entropy[mask] > 0).all()
    for value in token_logprobs(model, token_ids, attention, torch.zeros_like(mask)):
        assert value.shape == token_ids.shape
        assert not value.any()
    none = token_logprobs(model, token_ids, attention, torch.zeros_like(mask))[0].sum()
    assert not gradients(model, none).any()


def test_no_grad_uses_no_checkpoints(monkeypatch):
    monkeypatch.setattr(lm_head, "LOGITS_CHUNK_BYTES", 4 * 40 * 2)
    monkeypatch.setattr(lm_head, "checkpoint", None)
    model, batch = gpt2(dropout=0.0), left_padded_batch()
    with torch.no_grad():
        actual = token_logprobs(model, *batch)
        expected = plain_logprobs(model, *batch)
    torch.testing.assert_close(actual, expected, rtol=0, atol=1e-11)


@pytest.mark.parametrize("family", FAMILIES)
def test_families_match_their_own_forward(family):
    """Padded through decoder and head, against unpadded rows through the model's own forward."""
    model = tiny(family)
    batch = left_padded_batch()
    with torch.no_grad():
        actual, expected = token_logprobs(model, *batch), plain_logprobs(model, *batch)
    torch.testing.assert_close(actual, expected, rtol=0, atol=2e-5)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("gap", [False, True])
def test_the_last_layer_runs_where_it_is_read(family, gap):
    """States at the chosen columns and the gradient from them to the embeddings are those of the whole pass, for rows that
    run aligned and, with gaps, under a mask."""
    model = tiny(family).eval().requires_grad_(False)
    token_ids, mask, _ = left_padded_batch()
    if gap:
        mask = mask.clone()
        mask[0, 3] = False
    columns = torch.tensor([[token_ids.shape[1] - 1, token_ids.shape[1] - 3, 0]] * len(token_ids))
    valid = torch.tensor([[True, True, False]] * len(token_ids))
    rows = torch.arange(len(token_ids))[:, None]

    def read(only_there):
        inputs = model.get_input_embeddings()(token_ids).detach().requires_grad_()
        read_at = (columns, valid) if only_there else None
        with scoring_mode(model) if only_there else contextlib.nullcontext():
            states = hidden_states(model, mask, inputs_embeds=inputs, read_at=read_at)[rows, columns][valid]
        return states.detach(), torch.autograd.grad(states.square().sum(), inputs)[0]

    mlp = attention.last_mlp(model.get_decoder())
    assert mlp is not None
    widths = []
    handle = mlp.register_forward_hook(lambda module, args, out: widths.append(out.shape[1]))
    whole = read(False)
    handle.remove()
    torch.testing.assert_close(read(True), whole, rtol=1e-3, atol=1e-4)
    assert widths == [int(mask.sum(1).max()) if not gap else token_ids.shape[1]]
    assert not mlp._forward_hooks
    assert not mlp._forward_pre_hooks


@pytest.mark.parametrize("family", FAMILIES)
def test_known_states_give_the_same_logprobs(family):
    model = tiny(family).eval()
    batch = left_padded_batch()
    with torch.no_grad():
        states = prediction_states(model, batch[1], batch[0])
        actual = token_logprobs(model, *batch, states=states)
        expected = token_logprobs(model, *batch)
    torch.testing.assert_close(actual, expected, rtol=0, atol=0)


@pytest.mark.parametrize("family", FAMILIES)
def test_check_head_accepts_known_families(family):
    check_head(tiny(family))


@pytest.mark.parametrize(
    ("family", "key"), [("gemma2", "final_logit_softcapping"), ("granite", "logits_scaling"), ("cohere", "logit_scale")]
)
def test_scaled_and_capped_heads_need_their_treatment(family, key):
    """The models above would be told apart if the head were applied bare."""
    model = tiny(family)
    hidden = hidden_states(model, torch.ones(1, 4, dtype=torch.bool), torch.tensor([[1, 2, 3, 4]]))
    treated, bare = head_logits(model, hidden), model.get_output_embeddings()(hidden)
    assert float((treated - bare).detach().abs().max()) > 0.1
    if family == "gemma2":
        assert float(treated.detach().abs().max()) <= 0.5


class ScaledHead(Qwen2ForCausalLM):
    def forward(self, *args, **kwargs):
        out = super().forward(*args, **kwargs)
        out.logits = out.logits * 1.01
        return out


class BiasedHead(Qwen2ForCausalLM):
    def forward(self, *args, **kwargs):
        out = super().forward(*args, **kwargs)
        out.logits = out.logits + torch.arange(out.logits.shape[-1]) / 1000
        return out


@pytest.mark.parametrize("tampered", [ScaledHead, BiasedHead])
def test_check_head_refuses_unknown_transformations(tampered):
    torch.manual_seed(3)
    with pytest.raises(ValueError, match=rf"policy\.name: {tampered.__name__} transforms its logits"):
        check_head(tampered(FAMILIES["qwen2"]()).eval())


def test_check_head_names_weights_that_are_not_finite():
    model = tiny("qwen2")
    with torch.no_grad():
        model.model.norm.weight[0] = torch.nan
    with pytest.raises(
        ValueError, match=r"the logits of Qwen2ForCausalLM are not finite; its weights are damaged, or policy\.d"
    ):
        check_head(model)


@pytest.mark.parametrize("left", [0, 1, 5])
@pytest.mark.parametrize("family", ["gpt2", "qwen2"])
def test_left_padding_does_not_shift_positions(family, left):
    model = gpt2(dropout=0.0) if family == "gpt2" else tiny(family)
    ids = torch.tensor([[5, 6, 7, 8, 9]])
    padded_ids = torch.cat([torch.full((1, left), 33), ids], 1)
    attention = torch.arange(left + 5)[None] >= left
    with torch.no_grad():
        expected = model(ids).logits
        hidden = hidden_states(model, attention, padded_ids)
        actual = head_logits(model, hidden)[:, left:]
        embedded = hidden_states(model, attention, inputs_embeds=model.get_input_embeddings()(padded_ids))
    torch.testing.assert_close(actual, expected, rtol=0, atol=1e-11 if family == "gpt2" else 1e-5)
    torch.testing.assert_close(embedded[:, left:], hidden[:, left:], rtol=0, atol=0)


# ----------------------------------------------------------------------------------------------------- the golden tiny model


def test_golden_forward(golden_model):
    """The fixture is the model that the golden numbers were made with."""
    check = golden("model")["forward_check"]
    with torch.no_grad():
        logits = golden_model(torch.tensor([check["ids"]])).logits[0, -1]
    torch.testing.assert_close(logits, floats(check["last_logits_f64"]), rtol=0, atol=1e-12)


def trl_batch():
    token_ids = torch.cat([torch.tensor(TRL["prompt_ids_left_padded"]), torch.tensor(TRL["completion_ids_right_padded"])], 1)
    prompt, completion = (torch.tensor(TRL[k]).bool() for k in ("prompt_mask", "completion_mask"))
    return token_ids, torch.cat([prompt, completion], 1), torch.cat([torch.zeros_like(prompt), completion], 1)


@pytest.mark.parametrize("case", TRL["cases"], ids=lambda c: f"temperature={c['temperature']}")
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_trl_logprobs_and_entropies(golden_model, case, dtype):
    model = golden_model if dtype == torch.float64 else copy.deepcopy(golden_model).float()
    token_ids, attention, mask = trl_batch()
    width = len(TRL["prompt_mask"][0])
    with torch.no_grad():
        logprobs, entropies = token_logprobs(model, token_ids, attention, mask, case["temperature"])
    assert logprobs.dtype == dtype
    for actual, name in ((logprobs, "logps"), (entropies, "entropies")):
        torch.testing.assert_close(actual[:, width:].double(), floats(case[f"{name}_trl"]), rtol=0, atol=5e-6)
        if dtype == torch.float64:
            torch.testing.assert_close(actual[:, width:], floats(case[f"{name}_plain_f64"]), rtol=0, atol=1e-6)


@pytest.mark.parametrize("case", TRL["cases"], ids=lambda c: f"temperature={c['temperature']}")
@pytest.mark.parametrize("loss_type", ["grpo", "bnpo", "dr_grpo", "dapo"])
def test_trl_loss_and_gradient_end_to_end(golden_model, case, loss_type):
    """From token ids to parameter gradients: model, log-probabilities at a temperature, loss."""
    token_ids, attention, mask = trl_batch()
    logprobs, _ = token_logprobs(golden_model, token_ids, attention, mask, case["temperature"])
    advantages = floats(TRL["advantages"])[:, None].expand_as(logprobs)
    over = Denominators.of(mask, TRL["max_completion_length"])
    loss = policy_loss(LossInputs(logprobs, logprobs.detach(), advantages, mask, over), LossConfig(reduction=loss_type)).loss
    parameters = dict(golden_model.named_parameters())
    found = dict(zip(parameters, torch.autograd.grad(loss, list(parameters.values())), strict=True))
    expected = case["losses_trl"][loss_type]
    assert float(loss.detach()) == pytest.approx(expected["loss"], abs=1e-6)
    torch.testing.assert_close(found["model.norm.weight"], floats(expected["grad_final_norm_weight"]), rtol=1e-5, atol=1e-6)
    norm = torch.stack([g.norm() for g in found.values()]).norm()
    assert float(norm) == pytest.approx(expected["global_grad_norm"], rel=1e-5)


def test_target_logprobs_are_those_of_the_whole_softmax(monkeypatch):
    model = tiny("qwen2")
    monkeypatch.setattr(lm_head, "LOGITS_CHUNK_BYTES", 4 * 40 * 3)  # three rows at once
    hidden, targets = torch.randn(7, model.config.hidden_size), torch.arange(7)
    expected = model.get_output_embeddings()(hidden).log_softmax(-1)[torch.arange(7), targets]
    assert torch.allclose(lm_head.target_logprobs(model, hidden, targets), expected, atol=1e-6)
    warmer = (model.get_output_embeddings()(hidden) / 1.5).log_softmax(-1)[torch.arange(7), targets]
    assert torch.allclose(lm_head.target_logprobs(model, hidden, targets, 1.5), warmer, atol=1e-6)
