"""The MLflow store that a run logs to: its settings, and whether it answers."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated

from annotated_types import Interval

from oar_lightning.common.config_check import ConfigError
from oar_lightning.common.credentials import without_users
from oar_lightning.common.outputs import output_path
from oar_lightning.common.paths import local_database
from oar_lightning.common.ranges import Rule, checked
from oar_lightning.tracking.courier import short


@checked(
    "logger",
    Rule(
        lambda tracking_uri: "://" in tracking_uri or tracking_uri == "databricks",
        "logger.tracking_uri must be sqlite:///<file> or the address of a server, http://<host>:<port>, got {tracking_uri!r}",
    ),
    Rule(
        lambda register_as: register_as is None or (register_as.strip() and not set("/:") & set(register_as)),
        "logger.register_as={register_as} names a model of the registry: it cannot be empty nor hold / or :",
    ),
)
@dataclass(frozen=True)
class MLflowConfig:
    """The MLflow store and names of runs, and the limits on the time that logging takes.

    Args:
        max_stall_s: seconds for which starting and closing wait for a delivery.
        deliver_every_s: seconds between deliveries.
        offline_start: start without asking the server, and deliver later.
        run_name: null: the experiment's name, what the command sets, and the seed.
        register_as: a model of MLflow's registry, of which the exported policy becomes a new version.
        system_metrics: log the load of the machine; needs psutil.
    """

    tracking_uri: str
    experiment_name: str = "oar_lightning"
    run_name: str | None = None
    artifact_location: str | None = None
    tags: Mapping[str, object] = field(default_factory=dict)
    max_stall_s: Annotated[float, Interval(ge=0), "a number of seconds"] = 5.0
    deliver_every_s: Annotated[float, Interval(ge=0.1), "a number of seconds"] = 2.0
    offline_start: bool = False
    register_as: str | None = None
    system_metrics: bool = False

    @property
    def absolute_uri(self) -> str:
        """The tracking URI, with an absolute path, so that `task=sync` can run in any folder."""
        database = local_database(self.tracking_uri)
        return self.tracking_uri if database is None else f"sqlite:///{database.absolute()}"


def check_store(config: MLflowConfig) -> None:
    """Check that the server answers and has what is asked of it, before slow work begins.

    Raises:
        ConfigError: where it does not and `offline_start` is off, or psutil is missing.
    """
    if config.system_metrics and importlib.util.find_spec("psutil") is None:
        raise ConfigError("logger.system_metrics=true needs psutil: pip install psutil, or leave logger.system_metrics out")
    database = local_database(config.tracking_uri)
    if database is not None:
        output_path(str(database), "logger.tracking_uri")
    if config.offline_start or (database is not None and (config.artifact_location is None or not database.exists())):
        return
    from oar_lightning.tracking.mlflow_client import connect

    try:
        client = connect(config.tracking_uri)
        experiment = None if config.artifact_location is None else client.get_experiment_by_name(config.experiment_name)
    except Exception as error:
        raise ConfigError(unreachable(config.tracking_uri, error)) from error
    if experiment is not None:
        _check_location(config, str(config.artifact_location), str(experiment.artifact_location))
    if database is None and config.register_as is not None:
        try:
            client.search_registered_models(max_results=1)
        except Exception as error:
            raise ConfigError(
                f"logger.register_as={config.register_as}: {config.tracking_uri} has no model registry that answers "
                f"({short(error)}); leave logger.register_as out, or set MLFLOW_REGISTRY_URI"
            ) from error


def _check_location(config: MLflowConfig, asked: str, location: str) -> None:
    """Refuse an `artifact_location` that the experiment does not have: MLflow sets it once, where it makes the experiment."""
    # the store has made a relative path absolute, a server from a folder of its own
    is_relative = not asked.startswith("/") and "://" not in asked
    had, wanted = location.rstrip("/"), asked.removeprefix("./").rstrip("/")
    if had != wanted and not (is_relative and had.endswith(f"/{wanted}")):
        raise ConfigError(
            f"logger.artifact_location={asked}: the experiment {config.experiment_name} keeps {location}; "
            "leave logger.artifact_location out, or give another logger.experiment_name"
        )


def unreachable(tracking_uri: str, error: Exception, recorded: str | None = None) -> str:
    """The message for a store that cannot be used. `recorded`: another one, in which the run was recorded until now."""
    remedy = "start the server or correct the address" if recorded is None else f"the run is in {recorded}: give that address"
    return without_users(
        f"logger.tracking_uri={tracking_uri} cannot be used ({short(error)}); {remedy}, "
        "record now and deliver later with logger.offline_start=true, or log nothing with logger=none"
    )
