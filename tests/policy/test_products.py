"""Products with packed weights against the same in double precision, alone and within the decoders that use them."""

from __future__ import annotations

import pytest
import torch
from support.decoders import FAMILIES, random_model
from torch._subclasses import FakeTensorMode

from oar_lightning.benchmark.work import FlopCount, Rates, WorkCount
from oar_lightning.policy import products
from oar_lightning.policy.decoder import empty_past, growing_texts, plain_decoder
from oar_lightning.policy.language_model import base_model, embed
from oar_lightning.policy.lm_head import head_logits
from oar_lightning.policy.products import PackedWeights, Weights, fixed_weights, multiply, regular, with_rows

pytestmark = pytest.mark.skipif(not torch.backends.mkldnn.is_available(), reason="this build of torch has no oneDNN")


@pytest.fixture
def everything_packed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(products, "LEAST", 1)
    monkeypatch.setattr(products, "LEAST_WORK", 1)


def random(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape)))


@pytest.mark.parametrize("rows", [0, 1, 5, 300])
@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("kind", [PackedWeights, Weights])
def test_products_are_those_of_double_precision(rows: int, biased: bool, kind: type, everything_packed: None) -> None:
    matrix, bias = random(70, 33), random(70) if biased else None
    weights = kind(matrix)
    x, total = random(rows, 2, 33), random(rows, 2, 70)
    exact = x.double() @ matrix.double().T + (0 if bias is None else bias.double())
    with torch.no_grad():
        torch.testing.assert_close(weights(x, bias).double(), exact, rtol=1e-5, atol=1e-5)
    x, total, exact = x.flatten(0, 1), total.flatten(0, 1), exact.flatten(0, 1)
    with torch.no_grad():
        torch.testing.assert_close(weights.onto(total.clone(), x, bias).double(), total + exact, rtol=1e-5, atol=1e-5)
    before = total.clone()
    torch.testing.assert_close(weights.onto(total, x, bias).double(), total + exact, rtol=1e-5, atol=1e-5)
    assert torch.equal(total, before), "with gradients nothing is overwritten"


def test_what_is_multiplied_gets_its_gradient(everything_packed: None) -> None:
    matrix, x, total = random(70, 33), random(12, 33).requires_grad_(), random(12, 70).requires_grad_()
    weights = fixed_weights(matrix)
    assert isinstance(weights, PackedWeights)
    upstream = random(12, 70)
    (weights.onto(total, x.sin(), None) * upstream).sum().backward()
    torch.testing.assert_close(x.grad, upstream @ matrix * x.detach().cos(), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(total.grad, upstream)
    assert "packed" not in vars(weights), "a pass with gradients holds no second copy"


@pytest.mark.parametrize("shape", [(4, 3), (1, 1), (19, 7), (300, 1)])
@pytest.mark.parametrize(("outputs", "inputs"), [(70, 33), (33, 70)])
@pytest.mark.parametrize("added", [False, True])
def test_gradients_are_those_of_double_precision(
    shape: tuple[int, ...], outputs: int, inputs: int, added: bool, everything_packed: None
) -> None:
    """Of all that is multiplied and added, for numbers of rows with and without rows of padding."""
    leaves = {
        "matrix": random(outputs, inputs),
        "x": random(*shape, inputs),
        "bias": random(outputs),
        "total": random(*shape, outputs),
    }
    upstream = random(*shape, outputs).transpose(0, -1).contiguous().transpose(0, -1)
    found = {}
    for dtype in (torch.float32, torch.float64):
        at = {name: value.clone().to(dtype).requires_grad_() for name, value in leaves.items()}
        weights = Weights(at["matrix"] * 1)
        flat = (at[name].flatten(0, -2) for name in ("total", "x"))
        out = weights.onto(*flat, at["bias"]).view_as(at["total"]) if added else weights(at["x"], at["bias"])
        assert out.dtype == dtype
        (out * upstream.to(dtype)).sum().backward()
        found[dtype] = [out.detach(), *(leaf.grad for name, leaf in at.items() if added or name != "total")]
    for actual, expected in zip(*found.values(), strict=True):
        torch.testing.assert_close(actual.double(), expected, rtol=1e-5, atol=1e-4)


def test_what_no_gradient_is_asked_of_is_not_kept(everything_packed: None) -> None:
    matrix, x = random(70, 33), random(4, 33)
    kept: list[torch.Tensor] = []
    with torch.autograd.graph.saved_tensors_hooks(lambda tensor: kept.append(tensor) or tensor, lambda tensor: tensor):
        multiply(x.requires_grad_(), matrix)
        assert [tensor.data_ptr() for tensor in kept] == [matrix.data_ptr()]
        kept.clear()
        multiply(x.detach(), matrix.requires_grad_())
        assert [tensor.data_ptr() for tensor in kept] == [x.data_ptr()]


def test_second_derivatives_are_refused(everything_packed: None) -> None:
    x = random(4, 33).requires_grad_()
    (first,) = torch.autograd.grad(multiply(x, random(70, 33)).square().sum(), x, create_graph=True)
    with pytest.raises(RuntimeError, match="differentiate twice"):
        first.sum().backward()


@pytest.mark.parametrize("rows", [1, 8, 9, 16, 17, 100, 255, 256, 1000, 2976, 100_003])
def test_numbers_of_rows_are_few(rows: int) -> None:
    assert rows <= regular(rows) < max(rows + 1, 1.125 * rows)
    assert regular(regular(rows)) == regular(rows)
    octave = range(rows, 2 * rows)
    assert len({regular(n) for n in octave}) <= 9


@pytest.mark.parametrize("count", [5, 6, 8])
def test_rows_of_zero_follow(count: int) -> None:
    x = torch.randn(5, 3)
    out = with_rows(x, count)
    assert out.shape == (count, 3)
    assert torch.equal(out[:5], x)
    assert not out[5:].any()
    assert (out is x) == (count == 5)


def test_rows_are_those_that_products_are_made_with(monkeypatch: pytest.MonkeyPatch) -> None:
    met: list[int] = []
    monkeypatch.setattr(torch.ops.mkldnn, "_linear_pointwise", lambda x, w, *_: met.append(len(x)) or x.new_empty(len(x), 512))
    packed, plain = fixed_weights(random(512, 512)), Weights(random(512, 512))
    for rows in (1, 63, 64, 100, 301):
        with torch.no_grad():
            packed(random(rows, 512))
            assert met.pop() == packed.rows(rows) == regular(rows)
        plain(random(rows, 512))
        assert (met.pop() if met else rows) == plain.rows(rows) == packed.rows(rows) == (regular(rows) if rows >= 64 else rows)
    assert plain.rows(10_001) > 10_001 == Weights(random(512, 512).double()).rows(10_001), "of another type"


def test_who_multiplies(monkeypatch: pytest.MonkeyPatch) -> None:
    called: list[int] = []
    monkeypatch.setattr(products, "_onednn", lambda x, matrix, *_: called.append(1) or x @ matrix.T)
    matrix = random(512, 512)
    multiply(random(63, 512), matrix)
    multiply(random(64, 512).double(), matrix.double())
    multiply(random(64, 512).bfloat16(), matrix.bfloat16())
    with torch.backends.mkldnn.flags(enabled=False):
        multiply(random(64, 512), matrix)
    with torch.autocast("cpu", torch.bfloat16):
        assert multiply(random(64, 512), matrix).dtype == torch.bfloat16
    assert not called, "too small, of another type, or not wanted"
    multiply(random(64, 512), matrix)
    assert called


def test_which_weights_are_packed(monkeypatch: pytest.MonkeyPatch) -> None:
    large = random(512, 512)
    assert isinstance(fixed_weights(large), PackedWeights)
    assert type(fixed_weights(large[:200, :300])) is Weights, "too small to gain"
    assert type(fixed_weights(large.double())) is Weights
    assert type(fixed_weights(large.bfloat16())) is Weights
    assert type(fixed_weights(large.to("meta"))) is Weights
    with FakeTensorMode() as mode:
        assert type(fixed_weights(mode.from_tensor(large))) is Weights, "of which only the memory is counted"
    assert not fixed_weights(torch.nn.Parameter(large[:8])).matrix.requires_grad
    with torch.backends.mkldnn.flags(enabled=False):
        assert type(fixed_weights(large)) is Weights, "switched off by the user"


def test_work_is_counted(everything_packed: None) -> None:
    weights = fixed_weights(random(70, 33))
    with FlopCount() as count, torch.no_grad():
        weights(random(2, 5, 33))
        weights.onto(random(10, 70), random(10, 33), None)
    assert count.total == 2 * (2 * 10 * 33 * 70)


def test_the_roofline_knows_where_packed_weights_are() -> None:
    weights, x = fixed_weights(random(1024, 1024)), random(1, 1024)
    assert isinstance(weights, PackedWeights)
    with WorkCount(Rates(1e18, 1e10, 1e9)) as count, torch.no_grad():
        weights(x)
        first = count.work.seconds
        weights(x)
    size = 4 * 1024 * 1024
    assert first == pytest.approx(size / 1e9, rel=0.01), "from memory"
    assert count.work.seconds - first == pytest.approx(size / 1e10, rel=0.01), "from the cache that cores share"


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize(("texts", "width"), [(2, 6), (3, 7)], ids=["no rows are added", "one is added"])
def test_decoders_agree_with_the_modules(family: str, texts: int, width: int, everything_packed: None) -> None:
    model = random_model(family, torch.float32)
    decoder = plain_decoder(model)
    assert decoder is not None
    assert isinstance(decoder.layers[-1].keys_values, PackedWeights)
    assert decoder.layers[0].gate_up.rows(texts * width) == {12: 12, 21: 22}[texts * width]
    embeds = embed(model, torch.arange(texts * width).view(texts, width)).detach()
    columns = torch.arange(width).expand(texts, -1)
    start = empty_past(torch.zeros(texts, dtype=torch.long))
    for read in (columns, columns[:, :2]):  # few columns: the last layer computes its queries apart
        gradients = []
        for run in (
            lambda x, read=read: decoder(start, x, (read, read >= 0))[0],
            lambda x, read=read: base_model(model).get_decoder()(inputs_embeds=x).last_hidden_state[:, : read.shape[1]],
        ):
            x = embeds.clone().requires_grad_()
            hidden = run(x)
            with torch.no_grad():
                torch.testing.assert_close(run(embeds), hidden, rtol=1e-4, atol=1e-5)
            gradients.append((hidden, *torch.autograd.grad(hidden.sin().sum(), x)))
        for actual, expected in zip(*gradients, strict=True):
            torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-4)
    assert all(p.grad is None for p in model.parameters())


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("rows", [2, 17], ids=["no rows are added", "one is added"])
def test_texts_grow_as_the_model_reads_them(family: str, rows: int, everything_packed: None) -> None:
    model = random_model(family, torch.float32)
    ids = torch.randint(40, (rows, 7), generator=torch.Generator().manual_seed(rows))
    texts = growing_texts(model, torch.zeros(rows, dtype=torch.long), 7)
    hidden = [texts(ids[:, :4])[:, -1], *(texts(ids[:, i : i + 1])[:, -1] for i in range(4, 7))]
    with torch.no_grad():
        expected = model(ids).logits[:, 3:]
    for column, states in enumerate(hidden):
        torch.testing.assert_close(texts.logits(states), expected[:, column], rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(texts.logits(states), head_logits(model, states), rtol=1e-4, atol=1e-5)
