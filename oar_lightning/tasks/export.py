"""task=export: the policy of a checkpoint, DeepSpeed's folders included, in Hugging Face format with a model card; on request
also on the hub."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable
from pathlib import Path

from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig

from oar_lightning.common.config_check import ConfigError
from oar_lightning.distributed.frozen import frozen_weights
from oar_lightning.policy.pretrained import Policy, export_policy
from oar_lightning.policy.push import HubRepo, PushError
from oar_lightning.wiring.config import plain
from oar_lightning.wiring.device import seed_everything
from oar_lightning.wiring.kept_config import check_base
from oar_lightning.wiring.kept_policy import check_policy_kept, compared, digests_of
from oar_lightning.wiring.model_card import write_run_card
from oar_lightning.wiring.policy import bare_policy, export_folder
from oar_lightning.wiring.resume import Saved, find_checkpoint, read_saved
from oar_lightning.wiring.trained_weights import put_weights

log = logging.getLogger(__name__)


def prepare(cfg: DictConfig) -> Callable[[], None]:
    """Check the checkpoint. `policy=...` has to be that of the run, whose config, tokenizer and frozen weights it does not
    hold."""
    checkpoint = find_checkpoint(cfg)
    if checkpoint is None:
        raise ConfigError("task=export needs a checkpoint: give ckpt_path=<run folder or checkpoint>")
    folder = export_folder(cfg, Path(HydraConfig.get().runtime.output_dir))
    saved = read_saved(checkpoint, cfg.ckpt_fallback)
    if not isinstance(cfg.push_private, bool):
        raise ConfigError(f"push_private must be true or false, got {cfg.push_private!r}")
    repo = None if cfg.push_to_hub is None else HubRepo(str(cfg.push_to_hub), cfg.push_private)
    if repo is not None:
        repo.check()
    seed_everything(cfg.seed)
    policy = bare_policy(cfg)
    run_dir = saved.checkpoint.parent.parent
    exact = check_base(run_dir, plain(cfg), bool(frozen_weights(policy.model)))
    check_policy_kept(run_dir, digests_of(policy), compared(policy, begun=False) if exact else ("tokenizer",))
    put_weights(policy, saved)
    if repo is not None:
        repo.create()
    return lambda: export(policy, saved, folder, repo)


def export(policy: Policy, saved: Saved, folder: Path, repo: HubRepo | None = None) -> None:
    before = {} if repo is None else states_of_files(folder)
    export_policy(policy.model, policy.tokenizer, folder)
    write_run_card(folder, saved.checkpoint.parent.parent, saved.step, saved.evaluations)
    log.info("the policy of step %d: %s", saved.step, folder)
    if repo is None:
        return
    # the folder may hold files of its owner's, which stay here
    written = [name for name, state in states_of_files(folder).items() if before.get(name) != state]
    try:
        log.info("on the hub: %s", repo.upload(folder, written))
    except PushError as error:
        log.error("%s", error)
        log.error("the policy is in %s; repeat the command to push it", folder)
        sys.exit(1)


def states_of_files(folder: Path) -> dict[str, tuple[int, ...]]:
    """Path of each file within a folder -> what changes when it is written."""
    files = {path: path.stat() for path in folder.rglob("*") if path.is_file()}
    return {path.relative_to(folder).as_posix(): (s.st_ino, s.st_mtime_ns, s.st_size) for path, s in sorted(files.items())}
