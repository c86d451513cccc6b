"""Pasts cut at a column of each row's own."""

from __future__ import annotations

import pytest
import torch
from support.toy import gpt2, qwen2_golden

from oar_lightning.policy.decoder import Past, choose_decoder, empty_past
from oar_lightning.policy.language_model import embed, scoring_mode


@pytest.mark.parametrize("make", [gpt2, qwen2_golden, lambda: qwen2_golden().float()], ids=["gpt2", "qwen2", "plain"])
def test_what_follows_a_past_cut_at_own_columns_is_what_follows_each_prefix(make) -> None:
    model = make()
    ids = torch.randint(1, 20, (3, 9), generator=torch.Generator().manual_seed(0))
    first = torch.tensor([0, 2, 1])
    rows, ends, new = [2, 0, 1, 0], [9, 4, 3, 9], torch.tensor([[5, 6], [7, 8], [9, 1], [2, 3]])
    read_at = torch.tensor([[0, 1]]), torch.ones(1, 2, dtype=torch.bool)
    with scoring_mode(model), torch.no_grad():
        decoder = choose_decoder(model)
        _, past = decoder(empty_past(first), embed(model, ids), (read_at[0].expand(3, -1), read_at[1].expand(3, -1)), keep=True)
        assert past is not None
        cut = past.until(torch.tensor(rows), torch.tensor(ends))
        together, _ = decoder(cut, embed(model, new), (read_at[0].expand(4, -1), read_at[1].expand(4, -1)))
        for i, (row, end) in enumerate(zip(rows, ends, strict=True)):
            text = torch.cat([ids[row, first[row] : end], new[i]])[None]
            alone = model.get_decoder()(input_ids=text).last_hidden_state[0, -2:]
            torch.testing.assert_close(together[i], alone, rtol=1e-4, atol=1e-5)


def test_cut_at_one_column_it_is_a_selection() -> None:
    layer = torch.arange(24.0).view(2, 1, 4, 3)
    past = Past((layer,), (layer + 1,), torch.tensor([0, 1]))
    rows = torch.tensor([1, 0])
    cut, selected = past.until(rows, torch.tensor([3, 3])), past.select(rows, 3)
    assert torch.equal(cut.keys[0], selected.keys[0])
    assert torch.equal(cut.first, selected.first)
    assert past.until(rows, torch.tensor([0, 0])).width == 0
