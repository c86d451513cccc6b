"""What a run's folder says about the run: its resolved config, and the command and code that it comes from."""

from __future__ import annotations

import json
import logging
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml
from omegaconf import DictConfig, OmegaConf

from oar_lightning.common.messages import one_line
from oar_lightning.tracking.revision import git_revision
from oar_lightning.tracking.tracker import Tracker
from oar_lightning.wiring.config import plain

log = logging.getLogger(__name__)

CONFIGS = ("artifacts/config.yaml", ".hydra/config.yaml")
"""The config of a run: resolved, and (where there is no other) as it was composed."""

ORIGIN = "origin.json"
"""Of `artifacts/`."""


def read_config(run_dir: Path) -> dict[str, Any]:
    """The config that a run keeps; empty, with a warning, where it keeps none that can be read.

    Nothing in it is resolved now: it may come from elsewhere, and an interpolation can read this machine's environment.
    """
    for name in CONFIGS:
        try:
            content = yaml.safe_load((run_dir / name).read_text(encoding="utf-8"))
        except FileNotFoundError:
            continue
        except (OSError, ValueError, yaml.YAMLError, RecursionError) as error:
            log.warning("%s cannot be read (%s)", run_dir / name, one_line(error))
            continue
        if isinstance(content, dict):
            return content
    log.warning("%s holds no config of a run (%s)", run_dir, " or ".join(CONFIGS))
    return {}


@dataclass(frozen=True)
class Origin:
    """The overrides of the command that a run was started with, the revisions of the code that ran it, and the number of
    problems of each set (None: not counted)."""

    overrides: Sequence[str] | None = None
    revisions: Sequence[str] = ()
    problems: Mapping[str, int | None] = field(default_factory=dict)

    @property
    def command(self) -> str | None:
        """The command, without where its results are kept and without secrets."""
        if self.overrides is None:
            return None
        return shlex.join(["python", "-m", "oar_lightning", *map(without_secrets, filter(about_the_run, self.overrides))])


def note_origin(tracker: Tracker, overrides: Sequence[str], problems: Mapping[str, int | None]) -> None:
    """Write a run's origin into its folder. A run that goes on keeps its first command, and gets the revision added."""
    before = read_origin(tracker.run_dir)
    revisions = list(dict.fromkeys([*before.revisions, git_revision()]))
    started = overrides if before.overrides is None or not before.revisions else before.overrides
    content = {"overrides": [*map(without_credentials, started)], "revisions": revisions, "problems": dict(problems)}
    tracker.write_text(ORIGIN, json.dumps(content, indent=1, ensure_ascii=False))


def read_origin(run_dir: Path) -> Origin:
    """A run's origin, of an older run the overrides alone; empty where there is nothing that can be read."""
    try:
        content = json.loads((run_dir / "artifacts" / ORIGIN).read_text(encoding="utf-8"))
        problems = {str(name): count for name, count in content["problems"].items() if isinstance(count, int | None)}
        return Origin([str(o) for o in content["overrides"]], [str(r) for r in content["revisions"]], problems)
    except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError):
        pass
    try:
        content = yaml.safe_load((run_dir / ".hydra" / "overrides.yaml").read_text(encoding="utf-8"))
    except (OSError, ValueError, yaml.YAMLError, RecursionError):
        return Origin()
    return Origin([str(override) for override in content]) if isinstance(content, list) else Origin()


WHERE_IT_IS_KEPT = ("logger", "loggers", "hydra", "output_root", "export_to", "ckpt_path", "ckpt_fallback", "resume")
"""Keys, with all below them, that say nothing about what a run does."""

SECRET = re.compile(r"(^|[._])(api_?key|token|secret|password|credentials?)$", re.IGNORECASE)


def about_the_run(override: str) -> bool:
    return re.split(r"[.=/@]", override.lstrip("+~"), maxsplit=1)[0] not in WHERE_IT_IS_KEPT


def without_secrets(text: str) -> str:
    """An override without credentials, and without the name of the home folder."""
    return without_credentials(text).replace(str(Path.home()), "~")


def without_credentials(text: str) -> str:
    """An override without the value of a key that is named like a secret, tokens of the hub, and users in addresses."""
    key = text.partition("=")[0]
    if key != text and SECRET.search(key):
        return f"{key}=***"
    return without_users(re.sub(r"\bhf_\w{8,}", "hf_***", text))


def without_users(text: str) -> str:
    """A text without the users and passwords of its addresses."""
    return re.sub(r"://[^/@\s]+@", "://", text)


def logged(cfg: DictConfig) -> str:
    """The config as YAML for a tracking server, without credentials in the addresses of the loggers themselves."""
    content = plain(cfg)
    for block in ("logger", "loggers"):
        if content.get(block):
            content[block] = yaml.safe_load(without_users(yaml.safe_dump(content[block])))
    return OmegaConf.to_yaml(OmegaConf.create(content))
