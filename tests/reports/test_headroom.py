"""The headroom study: its arms, what it keeps of a block, and its paired table. Its gradients are tested in tests/lab."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from support.study_scripts import load_script

from oar_lightning.lab.gradients import Block, GradientSums

blocks, shares, training = (load_script("headroom", name) for name in ("blocks", "shares", "training"))


@pytest.mark.slow
def test_every_arm_composes() -> None:
    setup = blocks.set_up([], list(blocks.METHODS))
    assert list(setup.arms) == list(blocks.METHODS)


def test_a_block_is_measured_once_and_again_for_other_arms(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    measured: list[list[str]] = []

    def sample(*arguments: Any) -> Block:
        measured.append(list(arguments[4]))
        return Block(
            GradientSums.of(measured[-1], torch.arange(2.0 * len(measured[-1])).view(-1, 2), arguments[9]), {"reward": [0.5]}
        )

    monkeypatch.setattr(blocks, "sample_block", sample)
    model = torch.nn.Linear(1, 2, bias=False)

    def ask(*arms: str, references: tuple[str, ...] = ()) -> Block:
        setup = blocks.Setup(model, None, SimpleNamespace(train=(), method=None), dict.fromkeys(arms))
        return blocks.block_of(setup, tmp_path, 0, 1, "a_variant", references)

    both = ask("uniform", "oracle")
    assert torch.equal(ask("oracle").sums.total, both.sums.total[1:])
    assert ask("oracle").facts == {"reward": [0.5]}
    ask("oracle", "random")
    ask("oracle", "random", references=("oracle",))
    assert torch.equal(ask("random", "oracle", references=("oracle",)).sums.products, torch.tensor([[[0.0, 3.0], [0.0, 1.0]]]))
    assert measured == [["uniform", "oracle"], ["oracle", "random"], ["oracle", "random"]]


def test_the_table_has_shares_with_intervals() -> None:
    found = {"uniform": {"raw": (-0.001, -0.012, 0.010), "adam": (0.01, -0.006, 0.026), "variance/x": (1.0, 1.0, 1.0)}}
    text = shares.table({"methods": found, "facts": {"reward": 0.4771}, "batches": 4, "problems": 8, "group_size": 8})
    assert "4 batches of 8 x 8: reward 0.477" in text
    assert "| uniform | -0.1 [-1.2, 1.0] | 1.0 [-0.6, 2.6] |" in text


def test_differences_are_paired_by_seed_at_each_methods_best_rate() -> None:
    runs = {
        ("grpo", 1e-3): {0: 0.50, 1: 0.60, 2: 0.70},
        ("grpo", 1e-4): {0: 0.20},
        ("oracle", 1e-3): {0: 0.10},
        ("oracle", 3e-4): {0: 0.60, 1: 0.72, 2: 0.80, 3: 0.9},
    }
    assert training.best_rates(runs) == {"grpo": 1e-3, "oracle": 3e-4}
    text = training.tables(runs, "grpo")
    # differences 10, 12, 10: mean 10.667, standard deviation 1.1547, t(2) = 4.3027
    assert "| oracle | 0.0003 | 3 | 10.7 [7.8, 13.5] | +10.0, +12.0, +10.0 |" in text
    assert "| oracle | 0.001 | 0 | 10.0 |" in text
    with pytest.raises(SystemExit, match="share no seed"):
        training.best_rates({("grpo", 1e-3): {0: 0.5}, ("grpo", 1e-4): {1: 0.5}})


def test_an_interval_by_hand() -> None:
    # 1, 2, 3, 4, 5: mean 3, s / sqrt(5) = 0.70711, t(4) = 2.77645
    assert training.with_interval([1.0, 2.0, 3.0, 4.0, 5.0]) == pytest.approx((3.0, 3 - 1.96325, 3 + 1.96325), abs=1e-4)
