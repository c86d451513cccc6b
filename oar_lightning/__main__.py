"""`python -m oar_lightning +experiment=oar_g`: compose -> check -> build -> fit -> report, and return the objective."""

from __future__ import annotations

import contextlib
import logging
import os
import sys
from collections.abc import Callable

if __name__ == "__main__":
    from oar_lightning.distributed.slurm import answer_slurm

    answer_slurm(sys.argv)  # now, since a signal may come during the imports below

import hydra
from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf

from oar_lightning import tasks
from oar_lightning.command.completion import LINE
from oar_lightning.command.flags import answer, flags_first
from oar_lightning.common.allocator import keep_freed_memory
from oar_lightning.common.config_check import READS_TRAINING_DATA, ConfigError, check_keys, check_targets
from oar_lightning.common.paths import conf_dir
from oar_lightning.common.scopes import ctrl_c_ends, importing, sigterm_as_exit
from oar_lightning.distributed.launch import by_srun, by_torchrun, end_with_first_rank, is_first_rank, run_name
from oar_lightning.distributed.slurm import ignore_slurm
from oar_lightning.sweep import multirun
from oar_lightning.sweep.process import recording_failure, run_recorded, stop_with_parent
from oar_lightning.wiring import hydra_output
from oar_lightning.wiring.config import plain
from oar_lightning.wiring.jobs import Apart
from oar_lightning.wiring.keys import DATA_KEYS, TASK_KEYS, blocks, check_top_level
from oar_lightning.wiring.ranges import check_ranges
from oar_lightning.wiring.refusals import REFUSED, check_flags, explain, long_work, one_message, with_plus

log = logging.getLogger("oar_lightning")

TRAINS = ("train", "warm_start")
RESUMES_NOTHING = ("audit", "decontaminate", "benchmark", "plan", "report", "sync")

os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
os.environ.setdefault("MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR", "false")
os.environ.setdefault("MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT", "true")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
# OpenMP threads spin while they wait, which makes a small model many times slower on a busy machine
os.environ.setdefault("GOMP_SPINCOUNT", "20000")


# read by hydra.run.dir; `replace`, since sweeps import this module a second time, by its own name
OmegaConf.register_new_resolver("run_name", run_name, use_cache=True, replace=True)


def main() -> None:
    """Run the command. A mistake ends it with exit code 1 and one message, which has a better remedy than Hydra's own."""
    if (text := answer(sys.argv[1:], os.environ.get(LINE, ""))) is not None:
        print(text)  # noqa: T201  (what a flag asks for)
        return
    if "--hydra-help" in sys.argv:
        sys.argv[1:] = ["--hydra-help"]  # its page does not depend on overrides, and they would be a traceback
    check_flags(sys.argv[1:])
    sys.argv[1:] = with_plus(flags_first(sys.argv[1:]))
    end_with_first_rank()
    with one_message():
        job()


@hydra.main(version_base="1.3", config_path=str(conf_dir()), config_name="config")
def job(cfg: DictConfig) -> float | None:
    """Run one job, in a multirun in a process of its own. A bad config ends it with exit code 1 and one message.

    Only errors from before the long work are shortened: one that training raises keeps its traceback.
    """
    if HydraConfig.get().mode == RunMode.MULTIRUN:
        return multirun.start_job()
    if by_srun() and cfg.get("task") not in TRAINS:
        ignore_slurm()  # there is nothing to go on from
    stop_with_parent()
    try:
        with ctrl_c_ends(hydra_output.remove), recording_failure(begun=False):
            work = prepare(cfg)
    except ConfigError as error:
        if log.isEnabledFor(logging.DEBUG):
            raise
        log.error("%s (hydra.verbose=true shows the traceback)", error)
        sys.exit(1)
    hydra_output.begin(cfg)
    # a rank that waits for others would not end: torchrun sends SIGTERM where one has died
    with contextlib.nullcontext() if by_torchrun() else sigterm_as_exit(), long_work():
        return run_recorded(work)


def prepare(cfg: DictConfig) -> Callable[[], float | None]:
    """Check the config and build what the task needs. Where that fails, the run's folder does not stay.

    Raises:
        ConfigError: for any mistake, with the whole message.
    """
    try:
        return checked(cfg)
    except BaseException as error:
        hydra_output.remove()
        if isinstance(error, REFUSED):
            raise ConfigError(explain(error, sys.argv[1:])) from error
        raise


def checked(cfg: DictConfig) -> Callable[[], float | None]:
    """The quick checks first; then the task's own checks and objects."""
    multirun.check_mode()
    check_config(cfg)
    if cfg.num_threads is not None:
        os.environ["OMP_NUM_THREADS"] = str(cfg.num_threads)  # read when torch is imported; see `device.set_threads`
    check_targets(plain(cfg), import_them=False)
    with importing():  # torch, lightning and transformers take seconds: only after the quick checks
        import torch

        check_targets(plain(cfg))
        tasks.load(cfg.task)
    if not torch.cuda.is_available():
        keep_freed_memory()
        # otherwise transformers repeats grouped keys for every query head, which the CPU's attention does not need
        os.environ.setdefault("TRANSFORMERS_SDPA_FORCE_GQA", "1")
        # transformers' export imports DeepSpeed where it is installed, which warns that it finds no GPU unless it is told
        os.environ.setdefault("DS_ACCELERATOR", "cpu")
    quiet()  # after the imports, in which Lightning sets up its logging
    return tasks.prepare(cfg)


def quiet() -> None:
    """Silence notices of libraries that do not concern this run."""
    import warnings

    from transformers.utils import logging as transformers_logging

    for name in ("lightning.pytorch", "lightning.fabric"):
        library = logging.getLogger(name)
        library.handlers.clear()  # Hydra's handler shows them already
        library.setLevel(logging.WARNING)
    logging.getLogger("mlflow.store.db.utils").setLevel(logging.WARNING)  # that it makes its tables
    # DeepSpeed's trial compilations; retries while a tracking server is away, which is logged once elsewhere; the addresses of
    # the hub's requests, some of which are signed; what vLLM says while it is imported, before it reads its own setting
    for name in ("DeepSpeed", "compilers.C.base", "urllib3.connectionpool", "httpx", "httpx2", "vllm"):
        logging.getLogger(name).setLevel(logging.ERROR)
    warnings.filterwarnings("ignore", message=".*LeafSpec.*")
    warnings.filterwarnings("ignore", message=".*srun. command is available.*")  # wherever Slurm is installed
    warnings.filterwarnings("ignore", category=FutureWarning, module="torch.distributed.*")  # DeepSpeed causes one per call
    warnings.filterwarnings("ignore", category=FutureWarning, module=r"vllm\..*")
    # peft and we use the name that all releases of transformers 5 have
    warnings.filterwarnings("ignore", category=FutureWarning, message=".*gradient_checkpointing.* is deprecated")
    warnings.filterwarnings("ignore", message=".*each worker will save a shard.*")  # the export is a single model
    warnings.filterwarnings("ignore", message=".*training_step. returned .None.*")  # a step without a signal
    if not is_first_rank():  # rank 0 logs for all
        logging.getLogger().setLevel(logging.WARNING)
    if not sys.stderr.isatty():
        transformers_logging.disable_progress_bar()


def jobs_check() -> Callable[[DictConfig], None]:
    """All that can be checked of the jobs of a multirun without their objects, each by itself and beside those before it.

    The returned function raises:
        ConfigError: names the key, the value and the remedy.
    """
    apart = Apart()

    def check(cfg: DictConfig) -> None:
        check_config(cfg)
        check_targets(plain(cfg), import_them=False)
        apart.check_export(cfg)
        if cfg.task in TRAINS:
            apart.check_resumed(cfg)

    return check


def check_config(cfg: DictConfig) -> None:
    """The settings that belong to no class, and which there are.

    Raises:
        ConfigError: names the key, the value and the remedy.
    """
    if cfg.get("task") not in tasks.TASKS:
        raise ConfigError(f"task must be one of {', '.join(tasks.TASKS)}, got {cfg.get('task')}")
    check_top_level(map(str, cfg), cfg.task)
    for key in sorted(blocks(cfg.task) & set(map(str, cfg))):
        if not isinstance(cfg[key], DictConfig):
            raise ConfigError(f"{key}={cfg[key]}: {key} is a block of settings; set one of them, see --cfg job")
    check_keys(map(str, cfg.data), DATA_KEYS, "data")
    for task in TASK_KEYS.intersection(map(str, cfg.data)):
        if not isinstance(cfg.data[task], DictConfig) or "_target_" not in cfg.data[task]:
            raise ConfigError(
                f"data.{task}={cfg.data[task]}: no chosen data set reads it (data.name={cfg.data.get('name')}); leave it out, "
                f"and +variant=... which sets it, or set data={task}"
            )
    unread = () if cfg.task in READS_TRAINING_DATA else ("data.train.",)
    missing = sorted(key for key in OmegaConf.missing_keys(cfg) if not key.startswith(unread))
    if missing:
        raise ConfigError(f"{missing[0]} has no value; set it, e.g. {missing[0]}=...")
    if not cfg.name or ".." in str(cfg.name).split("/"):
        raise ConfigError(f"name must be a text that can be part of a path, got {cfg.name!r}; e.g. name=${{task}}")
    if str(cfg.output_root).startswith("~"):
        home = f"$HOME{str(cfg.output_root)[1:]}"
        raise ConfigError(f"output_root={cfg.output_root} would be a folder that is called ~; write output_root={home}")
    if isinstance(cfg.get("logger"), DictConfig) and "_target_" not in cfg.logger:
        key = next(iter(cfg.logger))
        raise ConfigError(
            f"logger.{key} is a setting of MLflow's, and this run has no such logger; set logger=mlflow, or leave it out"
        )
    check_ranges(cfg)
    if cfg.trainer.get("fast_dev_run") and cfg.task not in TRAINS:
        raise ConfigError(
            f"trainer.fast_dev_run={cfg.trainer.fast_dev_run} makes a training run short, and task={cfg.task} trains nothing; "
            "leave it out, and set evaluation.problems=2 or the like"
        )
    if cfg.task in RESUMES_NOTHING and (cfg.resume or cfg.ckpt_path is not None):
        raise ConfigError(
            f"resume={cfg.resume}, ckpt_path={cfg.ckpt_path}: task={cfg.task} reads no checkpoint; leave them out"
        )
    if cfg.export_to is not None and cfg.task not in (*TRAINS, "export"):
        log.warning("export_to=%s: without effect, since task=%s exports no policy; task=export does", cfg.export_to, cfg.task)
    if cfg.resume_changed and not (cfg.task in TRAINS and (cfg.resume or cfg.ckpt_path is not None)):
        raise ConfigError(
            f"resume_changed=true says how training is resumed, and nothing is (task={cfg.task}, resume={cfg.resume}, "
            f"ckpt_path={cfg.ckpt_path}); add resume=true or ckpt_path=<run folder>, or leave it out"
        )


if __name__ == "__main__":
    main()
