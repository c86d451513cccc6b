"""A new run with another one's state has its own settings of the optimizer, and its own data."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import lightning as L
import pytest
import torch
from support.fixtures import fit, make_module, tiny_policy, weights

from oar_lightning.training.callbacks import Fork, LastCheckpoint, RunIdentity


class Counter(L.Callback):
    """Counts steps, and looks at the optimizer and the data when a run begins."""

    def __init__(self) -> None:
        self.steps = 0
        self.seen: dict[str, Any] = {}

    def on_train_batch_start(self, trainer: L.Trainer, module: L.LightningModule, *_: Any) -> None:
        group = trainer.optimizers[0].param_groups[0]
        stream = trainer.datamodule.stream
        self.seen = self.seen or {
            "lr": group["lr"],
            "betas": tuple(group["betas"]),
            "moments": bool(trainer.optimizers[0].state),
            "problems": stream.offset,
            "weights": weights(module),
            "counted": self.steps,
        }

    def on_train_batch_end(self, *_: Any) -> None:
        self.steps += 1

    def state_dict(self) -> dict[str, Any]:
        return {"steps": self.steps}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.steps = state["steps"]


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    fit(make_module(tiny_policy()), 2, [Counter(), RunIdentity(lambda: None), LastCheckpoint(tmp_path, 0)])
    return tmp_path / "last.ckpt"


def begun(checkpoint: Path, *fork: Fork, betas: tuple[float, float] = (0.5, 0.6)) -> dict[str, Any]:
    module, counter = make_module(tiny_policy(1)), Counter()
    module.make_optimizer = lambda parameters: torch.optim.AdamW(parameters, lr=0.25, betas=betas)
    fit(module, 3, [*fork, counter], ckpt_path=str(checkpoint))
    return counter.seen


def test_a_fork_has_the_state_and_its_own_settings(checkpoint: Path) -> None:
    resumed, forked, anew = begun(checkpoint), begun(checkpoint, Fork()), begun(checkpoint, Fork(True, True))
    assert (resumed["lr"], resumed["betas"]) != (0.25, (0.5, 0.6)), "loading takes the old ones"
    for seen in (forked, anew):
        assert (seen["lr"], seen["betas"], seen["counted"]) == (0.25, (0.5, 0.6), 0)
        assert all(torch.equal(a, b) for a, b in zip(seen["weights"].values(), resumed["weights"].values(), strict=True))
    assert resumed["counted"] == 2
    assert (resumed["moments"], forked["moments"], anew["moments"]) == (True, True, False)
    assert resumed["problems"] == forked["problems"] == 3 * anew["problems"] > 0, "after the first batch of this start"


@pytest.mark.parametrize(
    ("fork", "kept"), [(Fork(), True), (Fork(new_credit=["curriculum"]), False), (Fork(new_data=True), False)]
)
def test_pass_rates_begin_anew_with_other_data_or_another_curriculum(fork: Fork, kept: bool) -> None:
    stream = {"epoch": 1, "offset": 5, "kept": 5, "dropped": {}, "curriculum": {"pass_rates": {"a": 0.5}}}
    checkpoint = {"loops": {"fit_loop": {"state_dict": {"combined_loader": [{"position": 8, "stream": stream}]}}}}
    fork.on_load_checkpoint(L.Trainer(logger=False, barebones=True), L.LightningModule(), checkpoint)
    (loader,) = checkpoint["loops"]["fit_loop"]["state_dict"]["combined_loader"]
    assert loader["position"] == 8
    assert ("curriculum" in loader["stream"]) == kept
    assert loader["stream"]["offset"] == (0 if fork.new_data else 5)
