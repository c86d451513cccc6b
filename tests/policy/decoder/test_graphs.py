"""Decoding steps that run at fixed places, as a GPU's graphs do, against passes over each whole text. On a CPU nothing is
recorded: the step itself runs again."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from support.growing_texts import GROWING, check_growth
from support.toy import gpt2
from transformers import FalconConfig, FalconForCausalLM

from oar_lightning.policy.decoder import graphs
from oar_lightning.policy.decoder.graphs import GraphTexts, can_record
from oar_lightning.policy.decoder.growing import ModuleTexts
from oar_lightning.policy.key_value_cache import RoomyLayer

ON_A_GPU = pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU here"))
NAMES = ["qwen2", "qwen3", "llama, ungrouped", "float64", "lora", "learned positions"]
FIRST = torch.tensor([0, 2, 5])


@pytest.fixture(autouse=True)
def _short(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Storage that grows often, and graphs for few columns, too."""
    monkeypatch.setattr("oar_lightning.policy.key_value_cache.LEAST_ROOM", 2)
    monkeypatch.setattr(graphs, "LEAST_COLUMNS", 1)
    graphs._refused.clear()
    yield
    graphs._refused.clear()


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """Rows, and columns of the storage, of each step that was made."""
    made: list[tuple[int, int]] = []

    class Step(graphs._Step):
        def __init__(self, texts: GraphTexts, token_ids: torch.Tensor) -> None:
            made.append((len(token_ids), texts.cache.layers[0].storage.shape[2]))
            super().__init__(texts, token_ids)

    monkeypatch.setattr(graphs, "_Step", Step)
    return made


def grown(texts: ModuleTexts, columns: int, start: int = 7) -> torch.Tensor:
    """The states of texts that have grown by so many columns, one at a time."""
    rng = torch.Generator().manual_seed(1)
    device = texts.first.device
    texts(torch.randint(40, (len(texts.first), start), generator=rng).to(device))
    new = torch.randint(40, (columns, len(texts.first), 1), generator=rng).to(device)
    return torch.cat([texts(column) for column in new], 1)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("first", [[0, 0, 0], [0, 2, 5]])
@pytest.mark.parametrize("device", ["cpu", ON_A_GPU])
@torch.no_grad()
def test_states_are_those_of_a_pass_over_the_whole_text(
    name: str, first: list[int], device: str, steps: list[tuple[int, int]], caplog: pytest.LogCaptureFixture
) -> None:
    torch.manual_seed(0)
    model = GROWING[name]().to(device)
    assert can_record(model) == (device == "cuda")
    texts = GraphTexts(model, torch.tensor(first, device=device), 7 + 12)
    check_growth(model, texts, first)
    assert not caplog.text
    assert [rows for rows, _ in steps] == [7, 2], "five rows use the step of seven"


@torch.no_grad()
def test_steps_are_made_anew_when_the_storage_has_grown(steps: list[tuple[int, int]]) -> None:
    model = GROWING["qwen2"]()
    found, expected = (grown(kind(model, FIRST, 7 + 40), 40) for kind in (GraphTexts, ModuleTexts))
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
    assert [rows for rows, _ in steps] == [3] * len(steps)
    columns = [columns for _, columns in steps]
    assert len(columns) > 2
    assert columns == sorted(set(columns))
    assert all(count % 8 == 0 for count in columns)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@torch.no_grad()
def test_autocast_rounds_more(dtype: torch.dtype, steps: list[tuple[int, int]], caplog: pytest.LogCaptureFixture) -> None:
    """The states are float32, but computed in 16 bits."""
    model = GROWING["qwen2"]()
    with torch.autocast("cpu", dtype, cache_enabled=False):
        found, expected = (grown(kind(model, FIRST, 7 + 8), 8) for kind in (GraphTexts, ModuleTexts))
    assert steps
    assert not caplog.text
    torch.testing.assert_close(found, expected, rtol=0.05, atol=0.05 * float(expected.abs().max()))


@torch.no_grad()
def test_nothing_is_made_for_few_columns(steps: list[tuple[int, int]], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(graphs, "LEAST_COLUMNS", 16)
    model = GROWING["qwen2"]()
    texts, expected = GraphTexts(model, FIRST, 40), ModuleTexts(model, FIRST, 40)
    rng = torch.Generator().manual_seed(1)
    for number, rows in enumerate([3] * 22 + [1] * 10):
        ids = torch.randint(40, (rows, 1 if number else 7), generator=rng)
        for one in (texts, expected):
            if number == 22:
                one.select(torch.tensor([2]))
        torch.testing.assert_close(texts(ids), expected(ids), rtol=1e-4, atol=1e-5)
    assert steps
    assert {rows for rows, _ in steps} == {3}, "when two rows of three left, few columns were to come"


@torch.no_grad()
def test_prompts_of_one_token(steps: list[tuple[int, int]]) -> None:
    model = GROWING["qwen2"]()
    found, expected = (grown(kind(model, FIRST * 0, 9), 8, 1) for kind in (GraphTexts, ModuleTexts))
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
    assert steps


@torch.no_grad()
def test_rows_that_have_left_are_not_read_beyond_the_positions(steps: list[tuple[int, int]]) -> None:
    """The first row alone begins late: the others, which leave, would be at positions that GPT-2 does not have."""
    model = gpt2().eval()
    first = torch.tensor([40, 40, 0])
    texts, expected = (kind(model, first, 100) for kind in (GraphTexts, ModuleTexts))
    rng = torch.Generator().manual_seed(1)
    for number in range(41):
        ids = torch.randint(40, (3 if number < 4 else 2, 1 if number else 60), generator=rng)
        for one in (texts, expected):
            if number == 4:
                one.select(torch.tensor([0, 1]))
        torch.testing.assert_close(texts(ids), expected(ids), rtol=1e-4, atol=1e-5)
    assert texts.width == 100
    assert {rows for rows, _ in steps[:1]} == {3}


class Moved(GraphTexts):
    """Steps with other positions."""

    def run_decoder(self, **inputs: Any) -> torch.Tensor:
        return super().run_decoder(**inputs | {"position_ids": inputs["position_ids"] + 3})


@pytest.mark.parametrize("diverged", [False, True])
@torch.no_grad()
def test_a_step_that_finds_something_else_is_not_used(diverged: bool, caplog: pytest.LogCaptureFixture) -> None:
    """Its keys do not stay in the cache either. A row that is not finite tells nothing of the others."""
    model = GROWING["learned positions"]()
    if not diverged:
        check_growth(model, Moved(model, FIRST, 7 + 12), FIRST.tolist())
    else:
        model.get_input_embeddings().weight[1] = torch.nan
        texts = Moved(model, FIRST, 20)
        texts(torch.full((3, 7), 2))
        texts(torch.tensor([[1], [2], [3]]))
    (record,) = caplog.records
    assert "finds something else" in record.getMessage()
    caplog.clear()
    assert not GraphTexts(model, FIRST, 20)._usable, "the model is not tried again"


@torch.no_grad()
def test_a_family_that_takes_no_such_mask_is_read_by_its_modules(caplog: pytest.LogCaptureFixture) -> None:
    sizes = {"vocab_size": 40, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
    model = FalconForCausalLM(FalconConfig(**sizes, alibi=True)).eval()
    with caplog.at_level(logging.WARNING):
        found, expected = (grown(kind(model, FIRST, 20), 8) for kind in (GraphTexts, ModuleTexts))
    assert torch.equal(found, expected)
    assert "could not be recorded" in caplog.text


@pytest.mark.parametrize("error", [RuntimeError("a value is needed"), torch.OutOfMemoryError("no memory")])
@pytest.mark.parametrize("first_fails", [True, False])
@torch.no_grad()
def test_the_modules_read_on_where_a_step_cannot_be_recorded(
    error: Exception, first_fails: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Also where the first step could and a later one, for other rows, cannot. Memory may suffice the next time."""
    model = GROWING["qwen2"]()
    texts = GraphTexts(model, FIRST, 7 + 40)
    made = graphs._Step

    def make(texts: GraphTexts, token_ids: torch.Tensor) -> Any:
        if first_fails or len(token_ids) == 2:
            raise error
        return made(texts, token_ids)

    monkeypatch.setattr(graphs, "_Step", make)
    check_growth(model, texts, FIRST.tolist())
    assert len(caplog.records) == 1
    assert f"could not be recorded ({error})" in caplog.text
    assert GraphTexts(model, FIRST, 20)._usable == isinstance(error, torch.OutOfMemoryError)


@pytest.mark.parametrize("fails", range(6))
@torch.no_grad()
def test_memory_that_runs_out_while_the_storage_grows_is_the_callers_matter(
    fails: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whichever tensor does not fit: the batch is then sampled again in parts, which needs the error."""
    texts = GraphTexts(GROWING["qwen2"](), FIRST, 60)
    texts(torch.full((3, 7), 2))
    texts(torch.full((3, 1), 2))
    moved, left = RoomyLayer._move, [fails]

    def move(self: RoomyLayer, rows: Any, columns: int) -> None:
        if not left[0]:
            raise torch.OutOfMemoryError("no memory")
        left[0] -= 1
        moved(self, rows, columns)

    monkeypatch.setattr(RoomyLayer, "_move", move)
    ids = torch.full((3, 1), 2)
    with pytest.raises(torch.OutOfMemoryError):
        any(texts(ids).isnan().any() for _ in range(40))
