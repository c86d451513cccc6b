"""The tags and parameters by which runs are told apart in MLflow, for every task that logs there."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig

from oar_lightning.common.config_check import ConfigError
from oar_lightning.common.credentials import hidden, shown_words
from oar_lightning.distributed.launch import is_first_rank
from oar_lightning.sweep.trial import current_ticket, job_folder, write_run_id
from oar_lightning.tracking.revision import git_revision
from oar_lightning.tracking.run_name import run_name
from oar_lightning.tracking.surroundings import surroundings
from oar_lightning.tracking.tracker import Tracker
from oar_lightning.wiring.component_name import component_name
from oar_lightning.wiring.config import plain

if TYPE_CHECKING:
    from oar_lightning.tracking.mlflow_store import MLflowConfig

EXPORTS = ("train", "warm_start")
"""Tasks that export a policy."""

NOTE = "mlflow.note.content"
"""The tag that MLflow shows as a run's description."""

LONGEST_COMMAND = 4000
"""Characters; MLflow takes tags of 8000."""


def run_tags(cfg: DictConfig) -> dict[str, str]:
    ticket = current_ticket()
    return {
        **(ticket.tags() if ticket else {}),
        "experiment": str(cfg.name),
        "task": str(cfg.task),
        "scorer": component_name(cfg, "scorer"),
        "data": str(cfg.data.name),
        "seed": str(cfg.seed),
        "git_revision": git_revision(),
        "overrides": shown_words(HydraConfig.get().overrides.task),
        **surroundings(str(cfg.trainer.accelerator)),
    }


def this_command() -> str:
    """The command that has started this process, without credentials."""
    return f"python -m oar_lightning {shown_words(HydraConfig.get().overrides.task)}".strip()


def presented(config: MLflowConfig, cfg: DictConfig) -> MLflowConfig:
    """The logger's config with a name and a description of the run, where the user has given none.

    Raises:
        ConfigError: for a policy to be registered by a task that makes none.
    """
    if config.register_as is not None and cfg.task not in EXPORTS:
        raise ConfigError(
            f"logger.register_as={config.register_as} registers the policy that {' and '.join(f'task={t}' for t in EXPORTS)} "
            f"export; leave it out of task={cfg.task}"
        )
    ticket = current_ticket()
    if ticket is None:
        name = config.run_name or run_name(str(cfg.name), HydraConfig.get().overrides.task, cfg.seed)
    elif config.run_name:
        name = f"#{ticket.number} {config.run_name}"
    else:  # what the trials share is in their sweep's name; the table of runs shows some 15 characters of a nested name
        name = run_name(f"#{ticket.number}", [f"{key}={value}" for key, value in ticket.swept.items()], cfg.seed)
    return replace(config, run_name=name, tags={NOTE: description(cfg), **config.tags})


def description(cfg: DictConfig) -> str:
    """What the run is, in Markdown: method, data and task, the command to repeat it, the code's revision."""
    command = this_command()
    if len(command) > LONGEST_COMMAND:
        command = f"{command[:LONGEST_COMMAND]}… (whole: tag overrides)"
    ticks = "`" * (1 + max(map(len, re.findall("`+", command)), default=0))
    commit, dirty, _ = git_revision().partition("-dirty")
    sets = ", ".join((plain(cfg)["data"].get("evaluation") or {}).keys())
    lines = [
        f"**{method(cfg)}**",
        f"{ticks} {command} {ticks}",  # in a line of text: the UI does not wrap a block, which pushes the page's right side out
        f"Task {cfg.task}, data {cfg.data.name}, evaluated on {sets or 'nothing'}; policy {cfg.policy.get('name', 'fresh')}; "
        f"code {commit[:12]}{dirty and ', changed since'}. All settings as a tree: `config.yaml` under Artifacts.",
    ]
    return "\n\n".join(lines)


def method(cfg: DictConfig) -> str:
    """The method in one line."""
    if cfg.task == "evaluate":
        return f"{cfg.evaluation.samples} samples a problem at temperature {cfg.rollout.temperature}"
    if cfg.task != "train":
        return {
            "warm_start": "Supervised training on demonstrations",
            "benchmark": "Seconds of each phase of a step",
            "lab": "Estimates of credit against what is known of the same completions",
        }[cfg.task]
    scorer, gate, loss = (component_name(cfg, group) for group in ("scorer", "gate", "loss"))
    uniform = scorer == "uniform" or cfg.gate.get("mode") == "off"
    first = [f"{key} {value}" for key, value in cfg.gate.items() if key != "_target_"][:3]
    credit = f"scorer {scorer}, gate {gate} ({', '.join(first)})"
    return f"Loss {loss}, {'every token the same credit' if uniform else credit}; lr {cfg.optimizer.get('lr')}"


def note_run(tracker: Tracker) -> None:
    """In a sweep's trial, tell the sweep which MLflow run it logs to."""
    folder = job_folder()
    if folder is not None and is_first_rank():
        write_run_id(folder, tracker.run_id)


def run_parameters(cfg: DictConfig) -> dict[str, Any]:
    """The resolved config without where it is logged to, and without credentials: what a run is compared by."""
    return hidden({key: value for key, value in plain(cfg).items() if key not in ("logger", "loggers")})
