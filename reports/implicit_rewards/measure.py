"""Processor seconds of a step with implicit process rewards beside GRPO's: the table of README.md.

python reports/implicit_rewards/measure.py
"""

from __future__ import annotations

import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import hydra
import lightning as L
import torch

from oar_lightning.common.markdown import fill, markdown
from oar_lightning.common.paths import conf_dir
from oar_lightning.training.train import train
from oar_lightning.wiring.settings import build_settings

ARMS = {
    "GRPO": ["+experiment=grpo"],
    "PRIME": ["+experiment=prime"],
    "PRIME, `scorer.update=before`": ["+experiment=prime", "scorer.update=before"],
    "iStar": ["+experiment=istar"],
}
CHEAP = [
    "logger=none",
    "evaluation.every_n_steps=0",
    "evaluation.problems=1",
    "evaluation.samples=1",
    "evaluation.greedy=false",
]
ROUNDS, STEPS = 3, 5


class Seconds(L.Callback):
    """The processor time at which each step begins; it counts nothing of what else the machine does."""

    def __init__(self) -> None:
        self.at: list[float] = []

    def on_train_batch_start(self, trainer: L.Trainer, module: L.LightningModule, batch: Any, batch_idx: int) -> None:
        if batch.first:
            self.at.append(time.process_time())

    @property
    def of_steps(self) -> list[float]:
        """Without the first step, in which memory is allocated, and the last, which has no next."""
        return [b - a for a, b in zip(self.at[1:-1], self.at[2:], strict=True)]


def steps_of(arm: str) -> list[float]:
    with hydra.initialize_config_dir(str(conf_dir()), version_base="1.3"):
        settings = build_settings(hydra.compose("config", [*ARMS[arm], *CHEAP]))
    seconds = Seconds()
    with tempfile.TemporaryDirectory() as folder:
        train(settings, STEPS + 2, folder, callbacks=[seconds], accelerator="cpu", enable_progress_bar=False)
    return seconds.of_steps


def main() -> None:
    torch.set_num_threads(1)
    found: dict[str, list[float]] = {arm: [] for arm in ARMS}
    for _ in range(ROUNDS):
        for arm, steps in found.items():
            steps += steps_of(arm)
    median = {arm: statistics.median(steps) for arm, steps in found.items()}
    lines = [["method", "s a step", "from .. to", "of GRPO's"]]
    for arm, steps in found.items():
        lines.append(
            [arm, f"{median[arm]:.2f}", f"{min(steps):.2f} .. {max(steps):.2f}", f"{median[arm] / median['GRPO']:.2f}"]
        )
    fill(Path(__file__).parent / "README.md", markdown(lines))


if __name__ == "__main__":
    main()
