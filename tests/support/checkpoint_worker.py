"""One rank of a small DeepSpeed job that tests interrupt in several ways (`test_deepspeed_checkpoints.py`)."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import lightning as L
import torch
from support.credit_methods import credit_methods, reference_of
from support.fixtures import fit, make_module, tiny_policy, weights
from support.rank_worker import Watch, configured, lora_policy

from oar_lightning.credit.gates import BilevelGate, Gate
from oar_lightning.credit.scorers import OarG, Scorer
from oar_lightning.distributed.strategies import adapt
from oar_lightning.policy.pretrained import Policy, export_policy
from oar_lightning.sweep.trial import Diverged
from oar_lightning.training.callbacks import (
    Divergence,
    DivergenceConfig,
    FinalWeights,
    LastCheckpoint,
    RandomState,
    RunIdentity,
)
from oar_lightning.training.callbacks import checkpoint as checkpoint_module
from oar_lightning.training.slots import UpdatePlan

STEPS, EVERY = 6, 3
PLAN = UpdatePlan(problems=4, group_size=4, minibatches=2, microbatches=2)
"""Two optimizer steps per batch of rollouts: the checkpoint of step 3 is in the middle of one."""


def train(
    folder: Path,
    trainer: str,
    ckpt_path: Path | None = None,
    make: Callable[[], Policy] = tiny_policy,
    method: tuple[Scorer, Gate] | None = None,
) -> dict[str, Any]:
    """Train to the last step with checkpoints in `folder`."""
    policy = make()
    watch, final = Watch(), FinalWeights()
    scorer, gate = method or (OarG(), BilevelGate())
    module = make_module(policy, scorer, gate=gate, update=PLAN, lr=1e-3, reference=reference_of(scorer, policy))
    callbacks = [watch, final, RandomState(), RunIdentity(lambda: "run"), LastCheckpoint(folder, EVERY)]
    rows = fit(module, STEPS, callbacks, str(ckpt_path) if ckpt_path else None, strategy=configured(trainer), devices=2).rows
    if os.environ["RANK"] == "0":
        export_policy(policy.model, policy.tokenizer, folder / "policy", final.state)
    return {"rows": rows, "weights": watch.weights, "own": watch.own}


class Weights(L.Callback):
    """Records the weights after every optimizer step."""

    def __init__(self) -> None:
        self.found: list[dict[str, torch.Tensor]] = []

    def on_train_batch_end(self, trainer: L.Trainer, module: L.LightningModule, outputs: Any, batch: Any, *_: Any) -> None:
        if batch.microbatch == PLAN.microbatches - 1:
            with adapt(trainer).gathered_parameters():
                self.found.append(weights(module))


def train_over_nan(trainer: str, step: int, most: int) -> dict[str, Any]:
    """Four steps; the first micro-batch's loss of one of them is NaN on the second rank."""
    module = make_module(tiny_policy(), update=PLAN)
    training_step, watch = module.training_step, Weights()
    divergence = Divergence(DivergenceConfig(max_skipped_steps=most), SimpleNamespace(history=[{"step": 0}]))  # type: ignore[arg-type]

    def broken(batch: Any, batch_idx: int) -> Any:
        loss = training_step(batch, batch_idx)
        here = os.environ["RANK"] == "1" and module.trainer.global_step + 1 == step and batch.microbatch == 0
        return loss * float("nan") if here else loss

    module.training_step = broken  # type: ignore[method-assign]
    try:
        fit(module, 4, [watch, divergence], strategy=configured(trainer), devices=2)
    except Diverged as error:
        return {"error": str(error), "weights": watch.found}
    return {"skipped": divergence.skipped, "weights": watch.found}


def die(*_: Any) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def die_in_writing(call: int) -> Callable[..., None]:
    """A replacement of DeepSpeed's `save` that truncates the file of its `call`-th call and kills the process."""
    from deepspeed.runtime.checkpoint_engine.torch_checkpoint_engine import TorchCheckpointEngine

    save, calls = TorchCheckpointEngine.save, []

    def half(self: Any, state_dict: Any, path: str) -> None:
        save(self, state_dict, path)
        calls.append(path)
        if len(calls) == call:
            os.truncate(path, os.path.getsize(path) // 2)
            die()

    return half


def break_at(place: str) -> None:
    """Arrange that this rank dies at the second checkpoint: in writing (rank 1), or between putting two links in place."""
    if place == "writing" and os.environ["RANK"] == "1":
        from deepspeed.runtime.checkpoint_engine.torch_checkpoint_engine import TorchCheckpointEngine

        per_checkpoint = 2 if "zero3" in sys.argv[4] else 1
        TorchCheckpointEngine.save = die_in_writing(per_checkpoint + 1)
    if place == "linking" and os.environ["RANK"] == "0":
        link = LastCheckpoint._link
        links: list[Path] = []

        def counted(self: Any, name: Path, to: Path) -> None:
            if len(links) == 2:  # the first checkpoint has one, the second begins with previous.ckpt
                die()
            links.append(name)
            link(self, name, to)

        checkpoint_module.LastCheckpoint._link = counted  # type: ignore[method-assign]


if __name__ == "__main__":
    torch.set_num_threads(1)
    folder, trainer, action = Path(sys.argv[1]), sys.argv[4], sys.argv[5]
    whole = folder / "whole"
    if action == "resume":
        found = {"whole": train(whole, trainer), "resumed": train(folder / "resumed", trainer, whole / "previous.ckpt")}
    elif action == "lora":
        found = {"whole": train(whole, trainer, make=lora_policy)}
        found["resumed"] = train(folder / "resumed", trainer, whole / "previous.ckpt", lora_policy)
    elif action == "own":
        name = sys.argv[6]
        found = {"whole": train(whole, trainer, method=credit_methods()[name])}
        found["resumed"] = train(folder / "resumed", trainer, whole / "previous.ckpt", method=credit_methods()[name])
    elif action == "go_on":
        found = {"resumed": train(folder / "killed", trainer, folder / "killed" / "last.ckpt")}
    elif action == "nan":
        found = {"left_out": train_over_nan(trainer, 2, most=1), "too_many": train_over_nan(trainer, 2, most=0)}
    elif action == "load":
        try:
            found = train(folder / "loaded", trainer, Path(sys.argv[6]))
        except Exception as error:
            found = {"error": f"{type(error).__name__}: {error}"}
    else:
        break_at(action)
        found = train(folder / "killed", trainer)
    torch.save(found, folder / f"rank{sys.argv[2]}.pt")
