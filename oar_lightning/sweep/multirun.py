"""Hydra's multirun (`-m`): starts the jobs of a grid, and opens and runs the study of a sweep."""

from __future__ import annotations

import contextlib
import functools
import logging
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from hydra.core.config_loader import ConfigLoader
from hydra.core.hydra_config import HydraConfig
from hydra.core.plugins import Plugins
from hydra.types import HydraContext, RunMode, TaskFunction
from hydra.utils import instantiate
from omegaconf import DictConfig, OmegaConf, open_dict, read_write

from oar_lightning.common.config_check import ConfigError
from oar_lightning.common.credentials import shown_words
from oar_lightning.common.mappings import flatten
from oar_lightning.common.messages import named_line
from oar_lightning.common.paths import local_artifacts, local_database
from oar_lightning.sweep.process import run_job
from oar_lightning.sweep.search_space import SearchSpace, config_key
from oar_lightning.sweep.trial import Pruning, job_folder, read_ticket
from oar_lightning.tracking.metric_table import METRICS
from oar_lightning.tracking.revision import git_revision

log = logging.getLogger(__name__)

GROUP = "sweeps"

FINAL = tuple(metric.name for metric in METRICS if metric.group == "Final metrics of a run")

SWEEP_ONLY = ("hydra.mode", "hydra.run.dir", "hydra.sweep", "hydra/sweeper", "hydra.launcher", "hydra/launcher")
"""Hydra overrides that are not passed on to a job's process."""

CHANGEABLE = ("num_threads", "logger", "output_root")
"""Settings without influence on results, which may change from one start of a sweep to the next."""

KEPT = "logger.experiment_name"
"""But not the MLflow experiment, since the runs of a study are in one."""


def chosen_sweep() -> str | None:
    """The name in `+sweeps=<name>`; None without a sweep file."""
    return HydraConfig.get().runtime.choices.get(GROUP)


def check_mode() -> None:
    """Raise ConfigError for `+sweeps=<name>` without `-m`: a sweep file lists settings to vary, which needs a multirun."""
    hydra, name = HydraConfig.get(), chosen_sweep()
    if name is not None and hydra.mode != RunMode.MULTIRUN and job_folder() is None:
        command = " ".join(["python -m oar_lightning -m", *hydra.overrides.task])
        raise ConfigError(f"{GROUP}={name} is a sweep of many runs and needs -m (--multirun): {command}")


def several_sweeps(words: Iterable[str]) -> ConfigError:
    return ConfigError(f"+{GROUP} takes one sweep at a time, with its own sweeper; got {' '.join(words)}")


def start_job() -> float | None:
    """Run the job that Hydra has composed in its own process; returns its objective.

    Raises:
        ConfigError: for several sweep files at once.
        JobFailed: where the job failed.
    """
    hydra = HydraConfig.get()
    folder = Path(hydra.runtime.output_dir)
    if chosen_sweep() is not None and read_ticket(folder) is None:
        raise several_sweeps(hydra.overrides.task)
    folders = [source.path for source in hydra.runtime.config_sources if source.provider == "command-line"]
    options = [part for path in folders for part in ("--config-dir", path)]
    kept = [override for override in hydra.overrides.hydra if not override.lstrip("+~").startswith(SWEEP_ONLY)]
    return run_job([*options, *kept, *hydra.overrides.task], folder)


def sweep(
    arguments: Sequence[str],
    config: DictConfig,
    hydra_context: HydraContext,
    task_function: TaskFunction,
    check: Callable[[DictConfig], None],
) -> None:
    """Open the study of `config.hydra.sweeper` and run its missing trials.

    Raises:
        ValueError, HydraException, OmegaConfBaseException: for a config that cannot run, before anything is written.
    """
    logging.getLogger("alembic").setLevel(logging.WARNING)  # it logs every database that it opens
    import optuna

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    from oar_lightning.sweep.loop import LauncherFailed, TooManyFailures, TrialRefused, run_sweep
    from oar_lightning.sweep.publish import best_trial
    from oar_lightning.sweep.study import Claim

    HydraConfig.instance().set_config(config)  # for ${hydra:...} in the values below
    space = SearchSpace.of(config, arguments)
    study_folder = _set_name_and_folder(config)
    # a typo would make the trials fail one by one
    loader = hydra_context.config_loader
    configs = check_examples(space, config, loader, functools.partial(_check_trial, check))
    study, publish = _open(space, arguments, config, configs, study_folder)
    launcher = Plugins.instance().instantiate_launcher(config=config, hydra_context=hydra_context, task_function=task_function)

    def launch(claims: Sequence[Claim]) -> Mapping[int, BaseException]:
        jobs = [space.overrides(claim.values, claim.folder) for claim in claims]
        errors: dict[int, BaseException] = {}
        try:
            returned = launcher.launch(jobs, initial_job_idx=claims[0].number)
        except Exception as error:  # e.g. a config that does not compose, or a lost worker
            log.exception("the launcher failed")
            raise LauncherFailed(named_line(error)) from error
        for claim, job in zip(claims, returned, strict=True):
            try:
                _ = job.return_value
            except Exception as error:  # reading the value of a failed job raises the job's error
                errors[claim.number] = error
        return errors

    done, planned = len(study.finished()), study.plan.n_trials
    log.info("study %s: %d of %d trials are finished; folder %s", study.plan.name, done, planned, study.folder)
    try:
        run_sweep(study, launch, publish, int(config.hydra.sweeper.n_jobs))
    except TrialRefused as refusal:
        raise ConfigError(str(refusal)) from refusal
    except TooManyFailures as error:
        log.error("%s", error)
        sys.exit(1)
    except (KeyboardInterrupt, SystemExit) as end:
        log.warning("stopped; repeat the command to continue the sweep")
        sys.exit(end.code if isinstance(end, SystemExit) else 130)
    best = best_trial(study)
    if best is not None:
        log.info("best: trial %d, %s, %s", best.number, best.values[0], best.user_attrs["swept"])
    log.info("table: %s", study.folder / "study" / "table.csv")


def _set_name_and_folder(config: DictConfig) -> Path:
    """Set the study's name (by default that of the sweep file) and Hydra's sweep folder; returns the folder of the trials."""
    sweeper = config.hydra.sweeper
    with read_write(config.hydra), open_dict(config.hydra):
        if sweeper.study_name is None:
            if chosen_sweep() is None:
                raise ConfigError("hydra.sweeper.study_name is not set; name the study, e.g. hydra.sweeper.study_name=mine")
            sweeper.study_name = chosen_sweep()
        folder = Path(sweeper.folder).expanduser().resolve()
        config.hydra.sweep.dir = str(folder)
    return folder


def _check_trial(check: Callable[[DictConfig], None], job: DictConfig) -> None:
    if job.get("resume"):
        raise ConfigError(
            "resume=true takes up the newest run of a name and seed, and a sweep's trials go on from their own checkpoints "
            "when its command is repeated; leave it out"
        )
    check(job)


def check_jobs(
    jobs: Iterable[Sequence[str]], config: DictConfig, loader: ConfigLoader, check: Callable[[DictConfig], None]
) -> None:
    """Compose and check jobs, each given by its overrides, before any of them starts."""
    for overrides in jobs:
        with _job_config(overrides, config, loader) as job:
            check(job)


def check_examples(
    space: SearchSpace, config: DictConfig, loader: ConfigLoader, check: Callable[[DictConfig], None]
) -> dict[str, dict[str, Any]]:
    """Compose and check the space's examples, before any job starts; the settings of each, by its swept values."""
    configs = {}
    for values in space.examples():
        with _job_config(space.overrides(values), config, loader) as job:
            check(job)
            configs[" ".join(f"{name}={value}" for name, value in values.items())] = _unchangeable(job)
    return configs


@contextlib.contextmanager
def _job_config(overrides: Sequence[str], config: DictConfig, loader: ConfigLoader) -> Iterator[DictConfig]:
    """The config of the job with these overrides, which in the block is Hydra's."""
    job = loader.load_sweep_config(config, list(overrides))
    former = HydraConfig.instance().cfg
    HydraConfig.instance().set_config(job)
    try:
        with open_dict(job):
            del job["hydra"]
        yield job
    finally:
        HydraConfig.instance().cfg = former


def _unchangeable(job: DictConfig) -> dict[str, Any]:
    """A job's settings by dotted key, without those that may change."""
    content: Any = OmegaConf.to_container(job, resolve=True)
    return {key: value for key, value in flatten(content).items() if key == KEPT or not key.startswith(CHANGEABLE)}


def _open(
    space: SearchSpace, arguments: Sequence[str], config: DictConfig, configs: Mapping[str, Mapping[str, Any]], folder: Path
) -> tuple[Any, Any]:
    """The study, and the object that publishes it."""
    from oar_lightning.sweep.publish import Folder, Mlflow, Store
    from oar_lightning.sweep.storage import SweepStorage
    from oar_lightning.sweep.study import SweepStudy

    plan = _plan(space, config.hydra.sweeper, configs)
    uri = None if config.logger is None else str(config.logger.tracking_uri)
    database = local_database(uri) if uri else None
    database_folder = database.parent if database else Path(config.hydra.runtime.cwd)
    database_folder.mkdir(parents=True, exist_ok=True)
    study = SweepStudy(plan, SweepStorage(config.hydra.sweeper.storage or database_folder / "optuna.db"), folder)
    if uri is None:
        return study, Folder()
    location = config.logger.artifact_location or local_artifacts(uri)
    words = [*arguments, *(word for word in config.hydra.overrides.hydra if not word.startswith("hydra.mode="))]
    tags = {"experiment": str(config.name), "git_revision": git_revision(), "overrides": shown_words(words)}
    try:
        return study, Mlflow(Store(uri, str(config.logger.experiment_name), location), study, tags)
    except ConfigError:  # a study that was begun here would refuse the corrected command
        study.discard()
        raise


def _plan(space: SearchSpace, sweeper: DictConfig, configs: Mapping[str, Mapping[str, Any]]) -> Any:
    """The checked plan of the sweeper's settings."""
    from optuna.samplers import BaseSampler

    from oar_lightning.sweep.plan import Objective, Plan
    from oar_lightning.sweep.samplers import GridPoints, draw_seed
    from oar_lightning.tracking.renamed import current_name

    directions = [d.name if hasattr(d, "name") else str(d) for d in _as_list(sweeper.direction)]
    metrics = _as_list(sweeper.objectives)
    if len(directions) != len(metrics):
        raise ConfigError(
            f"hydra.sweeper.objectives={metrics} needs as many directions, got {directions} in hydra.sweeper.direction"
        )
    if int(sweeper.n_jobs) < 1:
        raise ConfigError(f"hydra.sweeper.n_jobs must be >= 1, the trials that run at once, got {sweeper.n_jobs}")
    if other := [metric for metric in map(str, metrics) if current_name(metric) not in FINAL]:
        raise ConfigError(
            f"hydra.sweeper.objectives={other[0]}: trials have no final metric of this name; give one of {', '.join(FINAL)}"
        )
    if unknown := set(directions) - {"maximize", "minimize"}:
        raise ConfigError(f"hydra.sweeper.direction must be maximize or minimize, got {sorted(unknown)[0]}")
    seed = sweeper.sampler.get("seed")
    seed = sweeper.seed if seed is None else seed
    grid = GridPoints(space.points) if space.is_grid else None
    if grid is not None and int(sweeper.n_trials) < len(grid):
        log.warning(
            "hydra.sweeper.n_trials=%s: %d of the grid's %d points are run; set it to %d for all",
            sweeper.n_trials,
            int(sweeper.n_trials),
            len(grid),
            len(grid),
        )

    def sampler(number: int, parameter: str) -> BaseSampler:
        if grid is not None:
            return grid
        seeded = {} if seed is None else {"seed": draw_seed(int(seed), number, parameter)}
        new: BaseSampler = instantiate(sweeper.sampler, **seeded)
        return new

    return Plan(
        name=str(sweeper.study_name),
        space=space.space,
        settings=[line for line in space.fixed if not config_key(line).startswith(CHANGEABLE)],
        objectives=[Objective(current_name(str(m)), d) for m, d in zip(metrics, directions, strict=True)],
        configs=configs,
        n_trials=min(int(sweeper.n_trials), len(grid)) if grid is not None else int(sweeper.n_trials),
        sampler=sampler,
        search={"sampler": "grid"} if grid is not None else {"sampler": OmegaConf.to_container(sweeper.sampler), "seed": seed},
        describe=space.describe,
        max_failure_rate=float(sweeper.max_failure_rate),
        pruning=Pruning(**OmegaConf.to_container(sweeper.pruning)),  # type: ignore[arg-type]
        retry_failed=bool(sweeper.retry_failed),
    )


def _as_list(value: Any) -> list[Any]:
    return list(value) if OmegaConf.is_list(value) else [value]
