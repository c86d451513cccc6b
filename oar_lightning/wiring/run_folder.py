"""What a run's folder says about the run: its resolved config, and the command and code that it comes from."""

from __future__ import annotations

import json
import logging
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import yaml
from omegaconf import DictConfig, OmegaConf

from oar_lightning.common.credentials import hidden, without_credentials
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
class Parent:
    """The run whose state a run began with: the step of that state, the keys of which the run has other values, its origin."""

    step: int
    changed: Sequence[str]
    origin: Origin


@dataclass(frozen=True)
class Origin:
    """The overrides of the command that a run was started with and (`later`) of those that went on with it, where they differ;
    the revisions of the code that ran it, and the number of problems of each set (None: not counted)."""

    overrides: Sequence[str] | None = None
    revisions: Sequence[str] = ()
    problems: Mapping[str, int | None] = field(default_factory=dict)
    later: Sequence[Sequence[str]] = ()
    parent: Parent | None = None

    @property
    def command(self) -> str | None:
        """The commands that made the run, in their order and a line each, without where its results are kept and without
        secrets."""
        if self.overrides is None:
            return None
        lines = [command_of(self.overrides), *(f"{command_of(overrides)} {GOES_ON}" for overrides in self.later)]
        if self.parent is not None:
            before = self.parent.origin.command or "# the command of the run before is not known"
            lines = [before, f"{lines[0]} {GOES_ON} resume_changed=true  # from step {self.parent.step}", *lines[1:]]
        return "\n".join(lines)

    @property
    def parents(self) -> list[Parent]:
        """The runs whose states led to this one, the first one first."""
        return [] if self.parent is None else [*self.parent.origin.parents, self.parent]


GOES_ON = "ckpt_path=RUN_FOLDER"
"""What a command says that goes on with the run of the command before."""


def command_of(overrides: Sequence[str]) -> str:
    return shlex.join(["python", "-m", "oar_lightning", *map(without_secrets, filter(about_the_run, overrides))])


def note_origin(
    tracker: Tracker,
    overrides: Sequence[str],
    problems: Mapping[str, int | None],
    resumed: bool = False,
    parent: Parent | None = None,
) -> None:
    """Write a run's origin into its folder. A run that goes on (`resumed`) keeps its first command and its parent, and gets the
    revision added, and the overrides where they are others than those of its last start."""
    before = read_origin(tracker.run_dir) if resumed else Origin()
    now = [*map(without_credentials, overrides)]
    revisions = list(dict.fromkeys([*before.revisions, git_revision()]))
    if before.overrides is None or not before.revisions:
        origin = Origin(now, revisions, dict(problems), parent=parent)
    else:
        last = (before.overrides, *before.later)[-1]
        later = before.later if command_of(last) == command_of(now) else (*before.later, now)
        origin = Origin(before.overrides, revisions, dict(problems), later, before.parent)
    tracker.write_text(ORIGIN, json.dumps(asdict(origin), indent=1, ensure_ascii=False))


def read_origin(run_dir: Path) -> Origin:
    """A run's origin, of an older run the overrides alone; empty where there is nothing that can be read."""
    try:
        return _origin(json.loads((run_dir / "artifacts" / ORIGIN).read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError):
        pass
    try:
        content = yaml.safe_load((run_dir / ".hydra" / "overrides.yaml").read_text(encoding="utf-8"))
    except (OSError, ValueError, yaml.YAMLError, RecursionError):
        return Origin()
    return Origin([str(override) for override in content]) if isinstance(content, list) else Origin()


def _origin(content: Mapping[str, Any]) -> Origin:
    """What `note_origin` has written; older versions wrote neither later starts nor a parent."""
    overrides, parent = content["overrides"], content.get("parent")
    return Origin(
        None if overrides is None else [str(o) for o in overrides],
        [str(r) for r in content["revisions"]],
        {str(name): count for name, count in content["problems"].items() if isinstance(count, int | None)},
        tuple([str(o) for o in start] for start in content.get("later", ())),
        parent and Parent(int(parent["step"]), [str(key) for key in parent["changed"]], _origin(parent["origin"])),
    )


WHERE_IT_IS_KEPT = (
    *("logger", "loggers", "hydra", "output_root", "export_to"),
    *("ckpt_path", "ckpt_fallback", "resume", "resume_changed"),
)
"""Keys, with all below them, that say nothing about what a run does."""


def about_the_run(override: str) -> bool:
    return re.split(r"[.=/@]", override.lstrip("+~"), maxsplit=1)[0] not in WHERE_IT_IS_KEPT


def without_secrets(text: str) -> str:
    """An override without credentials, and without the name of the home folder."""
    return without_home(without_credentials(text))


def without_home(text: str) -> str:
    """A text whose paths in the home folder begin with ~."""
    try:
        home = str(Path.home())
    except RuntimeError:  # a user whom the machine does not know, as in containers
        return text
    return text if home == "/" else re.sub(rf"(?<![\w.-]){re.escape(home)}(?![\w.-])", "~", text)


def logged(cfg: DictConfig) -> str:
    """The config as YAML for a tracking server, without credentials."""
    return OmegaConf.to_yaml(OmegaConf.create(hidden(plain(cfg))))
