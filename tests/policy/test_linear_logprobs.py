"""Log-probabilities of a linear head in tiles, against the whole softmax."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM

from oar_lightning.policy import linear_logprobs, lm_head, products
from oar_lightning.policy.linear_logprobs import Tiles

ENTRIES, WIDTH = 37, 6
WHOLE = 64 * 2**20


def inputs(rows: int = 11, scale: float = 1.0, dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(rows)
    hidden = torch.randn(rows, WIDTH, generator=generator, dtype=dtype) * scale
    weight = torch.randn(ENTRIES, WIDTH, generator=generator, dtype=dtype)
    targets = torch.randint(0, ENTRIES, (rows,), generator=generator)
    targets[:2] = torch.tensor([0, ENTRIES - 1])[:rows]
    return hidden.requires_grad_(), weight.requires_grad_(), targets


def whole_softmax(hidden: Tensor, weight: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    log_p = torch.log_softmax(hidden @ weight.T, -1)
    return log_p.gather(1, targets[:, None])[:, 0], -(log_p.exp() * log_p).sum(1)


@pytest.fixture(params=[(512, 4096), (4, 10), pytest.param((1, 1), marks=pytest.mark.slow), (3, 37), (11, 36)], ids=str)
def tiles(request, monkeypatch: pytest.MonkeyPatch) -> Tiles:
    chosen = Tiles(*request.param)
    monkeypatch.setattr(Tiles, "of", lambda weight, chunk_bytes: chosen)
    return chosen


def found(hidden: Tensor, weight: Tensor, targets: Tensor, entropy: bool = True) -> tuple[Tensor, Tensor]:
    return linear_logprobs.linear_logprobs(hidden, weight, targets, WHOLE, entropy)


@pytest.mark.usefixtures("tiles")
@pytest.mark.parametrize("scale", [1e-3, 1.0, 300.0])
@pytest.mark.parametrize("rows", [1, 2, 11])
def test_values_and_gradients_are_those_of_the_whole_softmax(rows: int, scale: float) -> None:
    hidden, weight, targets = inputs(rows, scale)
    logprobs, entropy = found(hidden, weight, targets)
    expected, of_entropy = whole_softmax(hidden, weight, targets)
    assert torch.allclose(logprobs, expected, rtol=1e-12, atol=1e-12)
    assert torch.allclose(entropy, of_entropy, rtol=1e-9, atol=1e-12)
    upstream = torch.linspace(-1, 2, rows, dtype=torch.float64)
    actual = torch.autograd.grad(logprobs, (hidden, weight), upstream)
    for one, other in zip(actual, torch.autograd.grad(expected, (hidden, weight), upstream), strict=True):
        assert torch.allclose(one, other, rtol=1e-10, atol=1e-12)


@pytest.mark.usefixtures("tiles")
def test_products_of_onednn_give_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(products, "LEAST_WORK", 1)
    hidden, weight, targets = inputs(11, dtype=torch.float32)
    logprobs, entropy = found(hidden, weight, targets)
    exact = [leaf.detach().double().requires_grad_() for leaf in (hidden, weight)]
    expected, of_entropy = whole_softmax(*exact, targets)
    torch.testing.assert_close(logprobs.double(), expected, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(entropy.double(), of_entropy, rtol=1e-4, atol=1e-5)
    actual = torch.autograd.grad(logprobs.sum(), (hidden, weight))
    for one, other in zip(actual, torch.autograd.grad(expected.sum(), exact), strict=True):
        torch.testing.assert_close(one.double(), other, rtol=1e-4, atol=1e-4)


@pytest.mark.usefixtures("tiles")
def test_gradients_are_those_of_finite_differences() -> None:
    hidden, weight, targets = inputs(3)
    assert torch.autograd.gradcheck(lambda h, w: found(h, w, targets)[0], (hidden, weight))


@pytest.mark.usefixtures("tiles")
def test_of_no_rows_there_are_no_values_and_gradients_of_zero() -> None:
    hidden, weight, targets = inputs(0)
    logprobs, entropy = found(hidden, weight, targets)
    assert logprobs.shape == entropy.shape == (0,)
    logprobs.sum().backward()
    assert weight.grad is not None
    assert not weight.grad.any()


def test_entropies_carry_no_gradient_and_are_zero_if_not_asked() -> None:
    hidden, weight, targets = inputs()
    assert not found(hidden, weight, targets)[1].requires_grad
    assert not found(hidden, weight, targets, entropy=False)[1].any()
    assert torch.equal(found(hidden, weight, targets, entropy=False)[0], found(hidden, weight, targets)[0])


@pytest.mark.parametrize("frozen", [0, 1], ids=["states", "weights"])
def test_what_is_frozen_gets_no_gradient(frozen: int) -> None:
    hidden, weight, targets = inputs()
    (hidden, weight)[frozen].requires_grad_(False)
    found(hidden, weight, targets)[0].sum().backward()
    assert [value.grad is None for value in (hidden, weight)] == [frozen == 0, frozen == 1]


@pytest.mark.usefixtures("tiles")
def test_what_is_not_a_number_stays_so() -> None:
    hidden, weight, targets = inputs()
    with torch.no_grad():
        hidden[4] = torch.nan
        logprobs, entropy = found(hidden, weight, targets)
    assert logprobs.isnan().nonzero().tolist() == entropy.isnan().nonzero().tolist() == [[4]]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_rounds_logits_once(dtype: torch.dtype) -> None:
    """The softmax of half-precision logits is in float32, and whole rows of them go into each product."""
    hidden, weight, targets = (value.detach() for value in inputs(dtype=dtype))
    logits = (hidden @ weight.T).float()
    expected = torch.log_softmax(logits, -1).gather(1, targets[:, None])[:, 0]
    logprobs, _ = found(hidden, weight, targets)
    assert logprobs.dtype == torch.float32
    assert torch.allclose(logprobs, expected, atol=1e-5)
    assert Tiles.of(weight, 4 * ENTRIES * 3) == Tiles(3, ENTRIES)


def test_a_half_precision_gradient_is_rounded_once_not_once_a_tile() -> None:
    """States with a mean, whose products of tiles add up: in bfloat16 the sum would stop growing."""
    torch.manual_seed(0)
    hidden, weight, targets = torch.randn(1200, 16) + 1, 0.1 * torch.randn(ENTRIES, 16), torch.zeros(1200, dtype=torch.long)

    def gradient(dtype: torch.dtype, rows: int) -> torch.Tensor:
        w = weight.detach().clone().to(dtype).requires_grad_()
        linear_logprobs.linear_logprobs(hidden.to(dtype), w, targets, 4 * ENTRIES * rows)[0].sum().backward()
        assert w.grad is not None
        assert w.grad.dtype == dtype
        return w.grad.float()

    expected = gradient(torch.float32, 1200)
    for rows in (1, 1200):
        assert (gradient(torch.bfloat16, rows) - expected).norm() < 0.01 * expected.norm()


def test_under_autocast_products_are_in_its_dtype() -> None:
    hidden, weight, targets = (value.detach() for value in inputs(dtype=torch.float32))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        inside, _ = found(hidden, weight, targets)
    expected, _ = found(hidden.bfloat16(), weight.bfloat16(), targets)
    assert torch.equal(inside, expected)
    assert not torch.equal(inside, found(hidden, weight, targets)[0])


@pytest.mark.parametrize("entries", [1, 403, 32_000, 152_064])
def test_tiles_fit_into_the_cache_and_into_what_is_allowed(entries: int) -> None:
    weight = torch.empty(entries, 1)
    for chunk_bytes in (40, 2**16, WHOLE):
        tiles = Tiles.of(weight, chunk_bytes)
        assert 1 <= tiles.entries <= entries
        assert 4 * tiles.rows * tiles.entries <= min(chunk_bytes, linear_logprobs.TILE_BYTES)


@pytest.mark.parametrize("change", ["nothing", "bias", "hook", "soft cap", "subclass", "other dtype", "entropy gradient"])
def test_a_head_that_is_more_than_a_matrix_is_called(change: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model = LlamaForCausalLM(LlamaConfig(vocab_size=40, hidden_size=16, num_hidden_layers=1, num_attention_heads=2))
    head = model.lm_head
    hidden = torch.randn(5, 16)
    if change == "bias":
        head.bias = torch.nn.Parameter(torch.randn(40))
    elif change == "hook":
        head.register_forward_hook(lambda module, inputs, output: 2 * output)
    elif change == "soft cap":
        model.config.final_logit_softcapping = 3.0
    elif change == "subclass":
        head.__class__ = type(
            "Adapted", (torch.nn.Linear,), {"forward": lambda self, x: 1 + torch.nn.Linear.forward(self, x) ** 2}
        )
    elif change == "other dtype":
        hidden = hidden.double()
        head.forward = lambda states: torch.nn.functional.linear(states, head.weight.double())
    monkeypatch.setattr(lm_head, "FEW_LOGITS_BYTES", 0)
    calls = []
    inner = linear_logprobs.linear_logprobs
    monkeypatch.setattr(lm_head, "linear_logprobs", lambda *given: calls.append(given) or inner(*given))
    targets = torch.arange(5)
    logprobs, _ = lm_head._head_logprobs(model, hidden, targets, 0.7, True if change == "entropy gradient" else None)
    expected = torch.log_softmax(lm_head.head_logits(model, hidden) / 0.7, -1)[torch.arange(5), targets]
    assert torch.allclose(logprobs, expected, atol=1e-5)
    assert len(calls) == (change == "nothing")


def test_few_logits_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    model = LlamaForCausalLM(LlamaConfig(vocab_size=40, hidden_size=16, num_hidden_layers=1, num_attention_heads=2))
    calls = []
    inner = linear_logprobs.linear_logprobs
    monkeypatch.setattr(lm_head, "linear_logprobs", lambda *given: calls.append(given) or inner(*given))
    monkeypatch.setattr(lm_head, "FEW_LOGITS_BYTES", 4 * 40 * 5)
    for rows in (5, 6):
        lm_head.target_logprobs(model, torch.randn(rows, 16), torch.zeros(rows, dtype=torch.long))
    assert [len(given[0]) for given in calls] == [6]


@pytest.mark.usefixtures("tiles")
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_a_temperature_divides_the_logits(dtype: torch.dtype) -> None:
    """And not the states, which of 16 bits would be rounded by as much as tokens differ."""
    hidden, weight, targets = inputs(11, 3.0)
    hidden, weight = (x.detach().to(dtype).requires_grad_() for x in (hidden, weight))
    logprobs, entropy = linear_logprobs.linear_logprobs(hidden, weight, targets, WHOLE, temperature=0.7)
    log_p = torch.log_softmax(products.multiply(hidden, weight).to(logprobs.dtype) / 0.7, -1)
    expected = log_p.gather(1, targets[:, None])[:, 0]
    assert torch.allclose(logprobs, expected, rtol=1e-5, atol=1e-5)
    assert torch.allclose(entropy, -(log_p.exp() * log_p).sum(1), rtol=1e-4, atol=1e-5)
    upstream = torch.linspace(-1, 2, 11, dtype=logprobs.dtype)
    actual = torch.autograd.grad(logprobs, (hidden, weight), upstream)
    near = {"rtol": 1e-9, "atol": 1e-12} if dtype == torch.float64 else {"rtol": 0.02, "atol": 0.05}
    for one, other in zip(actual, torch.autograd.grad(expected, (hidden, weight), upstream), strict=True):
        assert torch.allclose(one, other, **near)
