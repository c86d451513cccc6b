"""Checkpoints that stay beside the last two: the last ones, and the best by a metric of the evaluations."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from oar_lightning.common.config_check import ConfigError
from oar_lightning.common.outputs import replace_file
from oar_lightning.common.ranges import NonNegativeInt, checked

KEPT, BEST, SCORES = "kept_step_*.ckpt", "best.ckpt", "kept.json"


@checked("checkpoints")
@dataclass(frozen=True)
class KeepConfig:
    """Which checkpoints stay.

    Args:
        last: so many of the last ones, the newest included.
        best: so many of the best ones. A checkpoint is then saved after each evaluation; ``best.ckpt`` leads to the best.
        monitor: what is best: ``eval/<evaluation set>/<metric>``. None: the sampled accuracy on the first evaluation set.
        mode: whether more (`max`) or less (`min`) of it is better.
    """

    last: Annotated[NonNegativeInt, "a number of checkpoints"] = 0
    best: Annotated[NonNegativeInt, "a number of checkpoints"] = 0
    monitor: str | None = None
    mode: Literal["max", "min"] = "max"

    @property
    def idle(self) -> dict[str, str]:
        """Settings without effect, "key=value" -> why, of those that are not the defaults."""
        unread = () if self.best else ("monitor", "mode")
        chosen = {key: getattr(self, key) for key in unread if getattr(self, key) != getattr(KeepConfig, key)}
        return {f"{key}={value}": "checkpoints.best=0" for key, value in chosen.items()}


def check_monitor(key: str, monitor: str | None, known: Sequence[str]) -> str:
    """The metric that a setting names, by default the first of the known ones.

    Raises:
        ConfigError: for a metric that no evaluation logs.
    """
    if monitor is None:
        return known[0]
    if monitor not in known:
        raise ConfigError(f"{key}={monitor} is no metric of the evaluations; they are: {', '.join(known)}")
    return monitor


def check_compared(setting: str, every_n_steps: int) -> None:
    """Raises: ConfigError: where a setting compares the evaluations of a run that makes one alone."""
    if not every_n_steps:
        raise ConfigError(
            f"{setting} compares evaluations, and evaluation.every_n_steps=0 makes one at the end alone; set "
            "evaluation.every_n_steps"
        )


class KeptCheckpoints:
    """The kept checkpoints of a folder, links to what was saved: ``kept_step_<n>.ckpt``, and in ``kept.json`` their scores.

    A link is made before it is written down, and what is written down is removed before it is unlinked, so that a kill leaves
    links that the next change removes.
    """

    def __init__(self, folder: Path, config: KeepConfig) -> None:
        self.folder = folder
        self.config = config

    def scores(self) -> dict[int, float | None]:
        """Step -> score of each kept checkpoint; None for one that was saved without an evaluation."""
        path = self.folder / SCORES
        return {int(step): score for step, score in json.loads(path.read_text()).items()} if path.exists() else {}

    def add(self, saved: Path, step: int, score: float | None) -> None:
        """Keep what is saved, and let go of what is no longer among the last or the best."""
        if not (self.config.last or self.config.best):
            return
        place = self._place(step)
        temporary = place.with_name(f".{place.name}.{os.getpid()}")
        temporary.unlink(missing_ok=True)
        if saved.is_symlink():  # to a folder
            temporary.symlink_to(saved.readlink())
        else:
            os.link(saved, temporary)
        os.replace(temporary, place)
        temporary.unlink(missing_ok=True)  # replacing a file by another name of itself leaves both
        self._reduce(self.scores() | {step: score})

    def go_on_from(self, step: int, score: Callable[[int], float | None]) -> None:
        """Let go of checkpoints of later steps than the one from which the run goes on, and take the others' scores anew: the
        run may go on with another metric. A run that keeps none touches none."""
        if (self.config.last or self.config.best) and (self.folder / SCORES).exists():
            self._reduce({at: score(at) for at in self.scores() if at <= step})

    def links(self) -> list[Path]:
        """The kept checkpoints."""
        return sorted(self.folder.glob(KEPT))

    def _place(self, step: int) -> Path:
        return self.folder / KEPT.replace("*", f"{step:06d}")

    def _reduce(self, scores: dict[int, float | None]) -> None:
        sign = 1 if self.config.mode == "max" else -1
        known = {step: score for step, score in scores.items() if score is not None}
        ranked = sorted(known, key=lambda step: (-sign * known[step], step))  # of equals the earlier
        last = sorted(scores)[-self.config.last :] if self.config.last else []
        wanted = {*last, *ranked[: self.config.best]}
        replace_file(self.folder / SCORES, json.dumps({step: scores[step] for step in sorted(wanted)}))
        best = self.folder / BEST
        if self.config.best and ranked:
            temporary = best.with_name(f".{BEST}.{os.getpid()}")
            temporary.unlink(missing_ok=True)
            temporary.symlink_to(self._place(ranked[0]).name)
            os.replace(temporary, best)
        else:
            best.unlink(missing_ok=True)
        for link in set(self.links()) - {self._place(step) for step in wanted}:
            link.unlink()
