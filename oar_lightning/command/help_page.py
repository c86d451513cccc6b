"""The page of `--help`. Experiments, tasks, groups and sweeps are read from the config files, with their comments."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable
from pathlib import Path

from omegaconf import DictConfig, OmegaConf

from oar_lightning import __version__
from oar_lightning.command.comments import Header
from oar_lightning.common.paths import PACKAGE, conf_dir, sweeps_dir

WIDTH = 80

COMMANDS = (
    ("train with OAR-G on the built-in task: minutes on two CPU cores", "+experiment=oar_g"),
    ("every stage of that in seconds, to see whether all works", "+experiment=smoke"),
    ("change any setting", "+experiment=oar_g gate.tau=0.5 optimizer.lr=3e-4"),
    ("print all settings of a run, and run nothing", "+experiment=oar_g --cfg job"),
    ("go on after an interruption", "+experiment=oar_g resume=true"),
    ("compare methods and seeds: each combination is a run", "-m +experiment=grpo,oar_g seed=0,1,2"),
    ("search for settings", "-m +experiment=oar_g +sweeps=smoke"),
    ("train a model of yours, a folder or a hub id", "policy=hf policy.name=my_model optimizer.lr=1e-6"),
    ("know beforehand whether it fits the memory", "task=plan +experiment=paper_qwen2_5_7b"),
    ("measure a policy", "task=evaluate policy=hf policy.name=my_model"),
)
"""What for, and the arguments."""

APART = {"experiment", "task"}
"""Groups with a section of their own."""

ADDED = {"variant"}
"""Groups of which a run has no option by itself: Hydra wants a `+` before them."""

INTRODUCTION = (
    "Reinforcement learning with verifiable rewards on math reasoning, with token-level credit assignment (OAR), on PyTorch "
    "Lightning, Hydra and MLflow."
)

FLAGS = (
    ("--help", "this page"),
    ("--version", "the version"),
    ("--cfg job", "print the composed config, run nothing"),
    ("--multirun, -m", "a run for each combination of a,b values; with +sweeps=NAME, a search"),
    ("--info", "where configs are found and how they are put together"),
    ("--hydra-help", "all flags of Hydra"),
    ("-sc install=bash", 'Tab completes: eval "$(oar-lightning -sc install=bash)"'),
)


def help_page() -> str:
    """The whole page, in lines of 80 columns at most."""
    experiments, tasks = ({p.stem: Header.of(p).sentence for p in _files(conf_dir() / g)} for g in ("experiment", "task"))
    sections = (
        ("", textwrap.fill(f"oar_lightning {__version__}. {INTRODUCTION}", WIDTH)),
        (
            "Usage",
            "  python -m oar_lightning [+experiment=NAME] [GROUP=NAME] [KEY=VALUE] [FLAG]\n  oar-lightning ... is the same",
        ),
        ("Commands to copy", "\n".join(f"  # {what}\n  python -m oar_lightning {arguments}" for what, arguments in COMMANDS)),
        ("Experiments (+experiment=NAME)", _table(experiments.items())),
        ("Tasks (task=NAME)", _table(tasks.items())),
        ("Groups (GROUP=NAME, * is the default)", _table(_groups(conf_dir()))),
        ("Sweeps (-m +sweeps=NAME)", _wrapped(" ".join(path.stem for path in _files(sweeps_dir())), "  ")),
        ("Flags", _table(FLAGS)),
        ("Documentation", _wrapped(_documentation(), "  ")),
    )
    return "\n\n".join(f"{title}\n{text}".strip("\n") for title, text in sections)


def _files(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.yaml"))


def _groups(root: Path) -> Iterable[tuple[str, str]]:
    """Name of each group -> its options, but for Hydra's own groups."""
    defaults = _defaults(root / "config.yaml")
    groups = {path.parent.relative_to(root).as_posix() for path in root.glob("*/**/*.yaml")}
    for group in sorted(name for name in groups - APART if not name.startswith("hydra/")):
        options = [path.stem for path in _files(root / group)]
        default = defaults.get(group)
        yield f"{'+' * (group in ADDED)}{group}", " ".join(f"{name}*" if name == default else name for name in options)


def _defaults(path: Path) -> dict[str, str]:
    config = OmegaConf.load(path)
    assert isinstance(config, DictConfig)
    return {str(group): str(name) for item in config.defaults if isinstance(item, DictConfig) for group, name in item.items()}


def _documentation() -> str:
    pages = PACKAGE.parent / "docs" / "index.md"
    where = str(pages.parent) if pages.is_file() else "the folder docs/ of the source"
    return f"{where}: begin with quickstart.md; config.md has all settings. `make docs-open` shows them as a site."


def _table(rows: Iterable[tuple[str, str]]) -> str:
    """Two columns, the second one wrapped."""
    rows = list(rows)
    width = max(len(name) for name, _ in rows) + 4
    return "\n".join(_wrapped(words, f"  {name}".ljust(width)) for name, words in rows)


def _wrapped(words: str, start: str) -> str:
    return textwrap.fill(
        words, WIDTH, initial_indent=start, subsequent_indent=" " * len(start), break_long_words=False, break_on_hyphens=False
    )
