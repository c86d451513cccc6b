"""What jobs of one multirun may not share: a folder for their policies, and a run that one of them goes on with."""

from __future__ import annotations

from pathlib import Path

from omegaconf import DictConfig

from oar_lightning.common.config_check import ConfigError
from oar_lightning.distributed.launch import is_restart
from oar_lightning.wiring.config import plain


class Apart:
    """Holds the jobs of one multirun against each other, in the order in which they are given."""

    def __init__(self) -> None:
        self._exports: set[Path] = set()
        self._same: dict[Path, list[bool]] = {}

    def check_export(self, cfg: DictConfig) -> None:
        """Raises ConfigError: where an earlier job exports to the same folder, of which the last one's policy would be left."""
        if not cfg.export_to:
            return
        folder = Path(str(cfg.export_to)).expanduser().resolve()
        if folder in self._exports:
            raise ConfigError(
                f"export_to={cfg.export_to} is the folder of several jobs of a multirun, which would overwrite each other's "
                "policies; leave it out (each job keeps its own in policy/ of its folder), or name the folder by what is "
                "varied, e.g. 'export_to=policies/${seed}'"
            )
        self._exports.add(folder)

    def check_resumed(self, cfg: DictConfig) -> None:
        """Of a job that trains from another run's checkpoint.

        Raises:
            ConfigError: where several jobs have the same run and one of them changes nothing of it.
        """
        if (cfg.ckpt_path is None and not cfg.resume) or is_restart():  # of its first start it was checked
            return
        from oar_lightning.training.callbacks.checkpoint import CHECKPOINTS  # slow, as the next
        from oar_lightning.wiring.kept_config import changed_since
        from oar_lightning.wiring.resume import find_checkpoint

        checkpoint = find_checkpoint(cfg)
        if checkpoint is None or checkpoint.parent.name != CHECKPOINTS:  # a job refuses such a file by itself
            return
        run_dir = checkpoint.parent.parent
        same = self._same.setdefault(run_dir.resolve(), [])
        same.append(not changed_since(run_dir, plain(cfg), {}))
        if len(same) > 1 and any(same):
            raise goes_on_elsewhere(run_dir)


def goes_on_elsewhere(run_dir: Path) -> ConfigError:
    """The error for a job that would train on in the folder of a run from which other jobs begin."""
    return ConfigError(
        f"ckpt_path={run_dir}: several jobs of a multirun begin from this run, and the one that changes none of its settings "
        "would go on in its folder, so that later jobs begin from another step; leave this value out of what is varied, or run "
        "that job alone, without -m"
    )
