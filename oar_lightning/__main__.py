"""`python -m oar_lightning +experiment=oar_g`: compose -> check -> build -> fit -> report, and return the objective."""

from __future__ import annotations

import logging
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import hydra
from hydra.core.hydra_config import HydraConfig
from hydra.errors import HydraException
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from oar_lightning.paths import conf_dir

if TYPE_CHECKING:
    from oar_lightning.build import Run

log = logging.getLogger("oar_lightning")

TASKS = ("train", "warm_start")
DATA_KEYS = ("name", "chain", "train", "evaluation", "prompt")

os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
os.environ.setdefault("MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR", "false")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
# OpenMP threads that spin while they wait slow a small model down many times over on a machine that is not idle
os.environ.setdefault("GOMP_SPINCOUNT", "20000")


@hydra.main(version_base="1.3", config_path=str(conf_dir()), config_name="config")
def main(cfg: DictConfig) -> float | None:
    """Run one job. A bad config ends it with exit code 1 and one message; in a multirun it is the job's failure."""
    try:
        return run(cfg)
    except (ValueError, ImportError, HydraException, OmegaConfBaseException) as error:
        if HydraConfig.get().mode == RunMode.MULTIRUN or log.isEnabledFor(logging.DEBUG):
            raise
        cause = error.__cause__ if isinstance(error, HydraException) and error.__cause__ else error
        log.error("%s", cause)
        log.error("(hydra.verbose=true shows the traceback)")
        sys.exit(1)


def run(cfg: DictConfig) -> float | None:
    check_config(cfg)
    # torch, lightning and transformers take seconds to import: only after the quick checks
    from oar_lightning import build
    from oar_lightning.config_check import check_targets

    quiet()
    check_targets(build.plain(cfg))
    checkpoint = find_checkpoint(cfg)
    settings = build.build_settings(cfg)
    build.set_threads(cfg.num_threads)
    build.seed_everything(cfg.seed)
    run_dir, run_id = Path(HydraConfig.get().runtime.output_dir), None
    if checkpoint is not None:
        run_dir, run_id = checkpoint.parent.parent, saved_run_id(checkpoint, int(cfg.trainer.max_steps))
    job = build.build_run(cfg, settings, run_dir, run_id)
    if checkpoint is not None:
        log.info("continuing %s", checkpoint)
        job.tracker.reopen()
    job.tracker.describe(build.plain(cfg), tags(cfg))
    job.tracker.write_text("config.yaml", OmegaConf.to_yaml(cfg, resolve=True))
    log.info("run folder: %s", run_dir)
    job.trainer.fit(job.module, job.datamodule, ckpt_path=checkpoint and str(checkpoint), weights_only=True)
    return finish(cfg, job, run_dir)


def quiet() -> None:
    """Keep the libraries' notices that say nothing about this run off the console."""
    import warnings

    from transformers.utils import logging as transformers_logging

    for name in ("lightning.pytorch", "lightning.fabric"):
        library = logging.getLogger(name)
        library.handlers.clear()  # Hydra's handler shows them already
        library.setLevel(logging.WARNING)
    logging.getLogger("DeepSpeed").setLevel(logging.ERROR)
    warnings.filterwarnings("ignore", message=".*LeafSpec.*")
    warnings.filterwarnings("ignore", message=".*training_step. returned .None.*")  # no completion had anything to teach
    if not sys.stderr.isatty():
        transformers_logging.disable_progress_bar()


def check_config(cfg: DictConfig) -> None:
    """What can be checked before the slow imports.

    Raises:
        ConfigError: names the key, the value and the remedy.
    """
    from oar_lightning.config_check import ConfigError, check_keys

    check_keys(map(str, cfg), top_level_keys(), "")
    check_keys(map(str, cfg.data), DATA_KEYS, "data")
    missing = sorted(OmegaConf.missing_keys(cfg))
    if missing:
        raise ConfigError(f"{missing[0]} has no value; set it, e.g. {missing[0]}=...")
    if cfg.task not in TASKS:
        raise ConfigError(f"task must be one of {', '.join(TASKS)}, got {cfg.task}")
    for key, lowest in (("seed", 0), ("checkpoint_every_n_steps", 0)):
        if not isinstance(cfg[key], int) or isinstance(cfg[key], bool) or cfg[key] < lowest:
            raise ConfigError(f"{key} must be an integer >= {lowest}, got {cfg[key]!r}")
    if not isinstance(cfg.trainer.max_steps, int) or cfg.trainer.max_steps < 1:
        raise ConfigError(
            f"trainer.max_steps counts optimizer steps and must be an integer >= 1, got {cfg.trainer.max_steps!r}"
        )
    if cfg.num_threads is not None and (not isinstance(cfg.num_threads, int) or cfg.num_threads < 1):
        raise ConfigError(f"num_threads must be an integer >= 1, or null for torch's default, got {cfg.num_threads!r}")
    if not isinstance(cfg.resume, bool):
        raise ConfigError(f"resume must be true or false, got {cfg.resume!r}; a path goes to ckpt_path")


def top_level_keys() -> list[str]:
    """The keys of config.yaml and the groups that its defaults list names."""
    config = OmegaConf.to_container(OmegaConf.load(conf_dir() / "config.yaml"))
    assert isinstance(config, dict)
    groups = [key for item in config.pop("defaults") if isinstance(item, dict) for key in item]
    return [*groups, *(str(key) for key in config if key != "hydra")]


def find_checkpoint(cfg: DictConfig) -> Path | None:
    """The checkpoint to continue from: `ckpt_path`, or with `resume=true` the newest of this name and seed.

    Raises:
        ConfigError: where there is none.
    """
    from oar_lightning.config_check import ConfigError

    if cfg.ckpt_path is not None:
        path = Path(cfg.ckpt_path).expanduser().resolve()
        path = path / "checkpoints" / "last.ckpt" if path.is_dir() else path
        if not path.is_file():
            raise ConfigError(f"ckpt_path={cfg.ckpt_path}: no such file; give a run's folder or its checkpoints/last.ckpt")
        return path
    if not cfg.resume:
        return None
    folder = Path(cfg.output_root).resolve() / str(cfg.name) / f"seed{cfg.seed}"
    found = sorted(folder.glob("*/checkpoints/last.ckpt"), key=lambda p: p.stat().st_mtime)
    if not found:
        raise ConfigError(f"resume=true: no checkpoint under {folder}; start without resume, or give ckpt_path=<file>")
    return found[-1]


def saved_run_id(checkpoint: Path, max_steps: int) -> str | None:
    """The MLflow run that a checkpoint belongs to.

    Raises:
        ConfigError: for a file that is no checkpoint, or of a run that has nothing left to do.
    """
    import torch

    from oar_lightning.config_check import ConfigError

    try:
        state = torch.load(checkpoint, map_location="cpu", weights_only=True, mmap=True)
        step, run_id = int(state["global_step"]), state["mlflow_run_id"]
    except Exception as error:
        raise ConfigError(f"ckpt_path={checkpoint}: not a readable checkpoint of this project ({error})") from error
    if step >= max_steps:
        raise ConfigError(
            f"{checkpoint} is at step {step} and trainer.max_steps={max_steps}: nothing is left to do; raise trainer.max_steps"
        )
    return run_id


def tags(cfg: DictConfig) -> dict[str, str]:
    """What runs are told apart by in MLflow."""
    from oar_lightning.tracking import git_revision

    return {
        "experiment": str(cfg.name),
        "task": str(cfg.task),
        "scorer": str(HydraConfig.get().runtime.choices.get("scorer")),
        "data": str(cfg.data.name),
        "seed": str(cfg.seed),
        "git_revision": git_revision(),
        "overrides": " ".join(HydraConfig.get().overrides.task),
    }


def finish(cfg: DictConfig, job: Run, run_dir: Path) -> float | None:
    """Export the policy, print the table; after a signal say how to go on and exit with its code."""
    from oar_lightning.policy import export_policy

    if job.stop.received is not None and job.trainer.global_step < job.trainer.max_steps:
        job.tracker.close("KILLED")
        where = run_dir / "checkpoints" / "last.ckpt"
        log.warning("stopped at step %d; to go on, repeat the command with ckpt_path=%s", job.trainer.global_step, where)
        sys.exit(128 + job.stop.received)
    folder = Path(cfg.export_to).expanduser() if cfg.export_to else run_dir / "policy"
    if job.trainer.is_global_zero:
        export_policy(job.policy.model, job.policy.tokenizer, folder)
    job.tracker.describe({}, {"final_model": str(folder.resolve())})
    job.tracker.close("FINISHED")
    return report(cfg, job, folder)


def report(cfg: DictConfig, job: Run, folder: Path) -> float | None:
    """Print accuracies before and after and how to see more; return the first benchmark's sampled accuracy."""
    from rich.console import Console

    from oar_lightning.callbacks.progress import before_after_table

    names = list(job.evaluation.benchmarks)
    table = before_after_table({name: job.evaluation.first_and_last(name) for name in names})
    if job.trainer.is_global_zero:
        console = Console()
        console.print(table)
        console.print(f"policy: {folder}", soft_wrap=True)
        if cfg.logger is not None:
            console.print(f"compare runs: mlflow ui --backend-store-uri {cfg.logger.tracking_uri}", soft_wrap=True)
    metrics: dict[str, Any] = job.evaluation.first_and_last(names[0])[1]
    return float(metrics[f"avg_at_{cfg.evaluation.samples}"])


if __name__ == "__main__":
    main()
