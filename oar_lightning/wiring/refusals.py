"""What Hydra refuses before a job begins, as one message with the key, the value and what to write instead.

Hydra's own advice for a mistyped key is to add it by `+`. Here the message names the key that was probably meant.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NoReturn

from hydra import compose, initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from hydra.errors import ConfigCompositionException, HydraException, MissingConfigException, OverrideParseException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from oar_lightning.common.config_check import ConfigError, nearest
from oar_lightning.common.messages import first_line
from oar_lightning.common.paths import conf_dir
from oar_lightning.common.scopes import environment
from oar_lightning.sweep.process import JobFailed
from oar_lightning.sweep.trial import Diverged
from oar_lightning.wiring.keys import ADDED_DATA_KEYS, additional_groups, remedy_for
from oar_lightning.wiring.other_names import last_part, other_name
from oar_lightning.wiring.ranges import SET_HERE

REFUSED = (ValueError, ImportError, OSError, HydraException, OmegaConfBaseException)
"""Errors from before the long work, of which a message says enough."""


IN_WORK = "_in_work"
"""Attribute of an error that the long work has raised."""

NO_OPTION = "Config group override must be a string or a list"
"""The beginning of Hydra's error for a group's value that is a number, a truth value or null."""

FLAGS = frozenset(
    f"--{name}"
    for name in (
        *("help", "hydra-help", "version", "cfg", "resolve", "package", "run", "multirun", "shell-completion"),
        *("config-path", "config-name", "config-dir", "experimental-rerun", "info"),
    )
)
"""Hydra's."""

FULL_ERROR = "HYDRA_FULL_ERROR"
"""Hydra's variable for errors with their traceback."""


def with_plus(arguments: Sequence[str]) -> list[str]:
    """The arguments, where a group that Hydra wants added may be written like any other: `experiment=oar_g`."""
    return [f"+{argument}" if argument.partition("=")[0] in additional_groups() else argument for argument in arguments]


def check_flags(arguments: Sequence[str]) -> None:
    """End the command where a setting is written like a flag: `--learning_rate 1e-5`."""
    for argument in arguments:
        flag = argument.partition("=")[0]
        if argument.startswith("--") and flag not in FLAGS:
            other = other_name(flag.lstrip("-").replace("-", "_"))
            advice = f": {other.advice}" if other else ", e.g. optimizer.lr=1e-5"
            refuse(ConfigError(f"{argument} is no flag; settings are written key=value, without dashes{advice}"))


@contextlib.contextmanager
def one_message() -> Iterator[None]:
    """A block in which an error that Hydra raises ends the command with one message in place of Hydra's own."""
    if FULL_ERROR in os.environ:  # the user wants to see tracebacks
        yield
        return
    try:
        with environment({FULL_ERROR: "1"}):  # Hydra then raises its errors, and does not print them
            yield
    except (*REFUSED, JobFailed, Diverged) as error:
        if getattr(error, IN_WORK, False):
            raise
        # Hydra itself writes nothing but the folder of the run; one of its own errors is an OSError, too
        if isinstance(error, OSError) and not isinstance(error, HydraException):
            refuse(ConfigError(unwritable(error.filename, error)))
        refuse(error)


@contextlib.contextmanager
def long_work() -> Iterator[None]:
    """A block whose errors keep their traceback: they may come from anywhere, but for those that were written to say all."""
    try:
        yield
    except REFUSED as error:
        setattr(error, IN_WORK, not isinstance(error, ConfigError))
        raise


def unwritable(folder: object, error: OSError) -> str:
    return (
        f"hydra.run.dir={folder} cannot be written ({error.strerror}); choose another folder by output_root=... or "
        "hydra.run.dir=..."
    )


def refuse(error: BaseException) -> NoReturn:
    """End the command with exit code 1 and the message."""
    print(explain(error, sys.argv[1:]), file=sys.stderr)  # noqa: T201  (logging may not be set up yet)
    sys.exit(1)


def explain(error: BaseException, arguments: Sequence[str]) -> str:
    """The message for a refused command. `arguments` are those of the command line."""
    if isinstance(error, MissingConfigException) and error.missing_cfg_file:
        return _unknown_option(error)
    if isinstance(error, OverrideParseException):
        reason = _joined_lines(error.message.partition("See https")[0])
        return (
            f"{error.override} cannot be read ({reason}); write key=value without spaces, and quote what the shell or Hydra "
            "takes apart, e.g. 'key=\"a, b\"'"
        )
    if isinstance(error, ConfigCompositionException):
        return _not_composed(error, arguments)
    if str(error).startswith(NO_OPTION):
        return _no_option(error, arguments)
    cause = error.__cause__ if isinstance(error, HydraException) and error.__cause__ else error
    return _joined_lines(str(cause)) if isinstance(cause, HydraException | OmegaConfBaseException) else str(cause)


def _no_option(error: BaseException, arguments: Sequence[str]) -> str:
    """For `logger=false`."""
    for argument in arguments:
        group, _, value = argument.partition("=")
        options = _options_of(group.lstrip("+"))
        if options and value not in options and value[:1] not in "[{":
            return f"{argument}: {group} takes the name of an option: {', '.join(options)}"
    return str(error)


def _joined_lines(text: str) -> str:
    return "; ".join(line.strip() for line in text.splitlines() if line.strip())


def _options_of(group: str) -> list[str]:
    """The names of a group's files; none of what is no group."""
    return sorted(path.stem for path in (conf_dir() / group).glob("*.yaml")) if group else []


def _unknown_option(error: MissingConfigException) -> str:
    """For `scorer=oar_x`."""
    group, _, name = str(error.missing_cfg_file).rpartition("/")
    options = sorted(error.options or _options_of(group))
    if not group or not options:
        return _joined_lines(str(error))
    near = nearest(name, options)
    hint = f"did you mean {group}={near}? " if near else ""
    return f"{group}={name}: there is no such option; {hint}the options of {group} are: {', '.join(options)}"


def _not_composed(error: ConfigCompositionException, arguments: Sequence[str]) -> str:
    """For an override of a key or a group that the config does not have, or has already."""
    text = str(error)
    override = text.partition("'")[2].partition("'")[0]  # Hydra names it between quotes
    key = override.partition("=")[0]
    if text.startswith("Multiple values for "):
        key = text.removeprefix("Multiple values for ").partition(". ")[0]
        if len(given := [argument for argument in arguments if _key(argument) == key and "=" in argument]) > 1:
            return f"{' '.join(given)}: one {key} can be chosen; leave out all but one of them"
    if text.startswith("Ambiguous value for argument "):
        return f"{override}: several values are a grid, which takes -m; to give a text with commas write '{key}=\"a,b\"'"
    written = next((argument for argument in arguments if _key(argument) == key), key)
    if text.startswith(("Could not append", "Multiple values")) and written.startswith("+"):
        return f"{written}: the config has {key} already; leave out the plus: {written.lstrip('+')}"
    if not text.startswith(("Could not override", "Could not delete")) or "The value of" in text:
        return _joined_lines(text if error.__cause__ is None else f"{text}\n{first_line(error.__cause__)}")
    config = _composed_without(written, arguments)
    block = key.partition(".")[0]
    if block not in config and (remedy := remedy_for(block)):
        return remedy
    return f"unknown key {written}; {_advice(key, written, config)}"


def _advice(key: str, written: str, config: DictConfig) -> str:
    value = "".join(written.partition("=")[1:])
    block, _, last = key.rpartition(".")
    if block == "trainer" and last in SET_HERE:
        return SET_HERE[last]
    if block == "data" and last in ADDED_DATA_KEYS:
        remedy = "so there is nothing to leave out" if written.startswith("~") else f"a plus adds it: +{written}"
        return f"{key} is not set by the files that were chosen; {remedy}"
    if value[1:] in _options_of(last):
        return f"the option of a group is chosen there by +{last}@{key}{value}"
    if block in additional_groups() | {"task"}:
        return f"{block} takes the name of an option: {', '.join(_options_of(block))}"
    if last == "name" and (options := _options_of(block)):
        return f"an option is chosen by {block}=...: {', '.join(options)}"
    for group, options in _options_with(key):
        if chosen := config.hydra.runtime.choices.get(group):
            have = ", ".join(f"{group}={option}" for option in options)
            return f"{group}={chosen} has no such setting; {have} {'has' if len(options) == 1 else 'have'} it"
    known = [name for name in _keys(config) if not key.startswith(f"{name}.")]
    if not key.startswith("hydra."):
        known = [name for name in known if not name.startswith("hydra.")]
    siblings = {name.removeprefix(f"{block}."): name for name in known if name.startswith(f"{block}.")}
    if last.startswith("_") and last not in siblings:  # a sibling block's makes another object
        return f"a plus adds one: +{written}"
    near = siblings.get(nearest(last, siblings) or "") or nearest(key, [*known, *additional_groups()])
    if near == key:  # a group, whose block was written out
        return f"{key} takes the name of an option; for an object of your own write '~{key}' '+{written}'"
    meant, other = f"did you mean {near}{value}?", other_name(key)
    if other is None or near == other.here:
        return meant if near else f"no key is similar: --cfg job shows all{', a plus adds one of your own' * ('.' in key)}"
    is_theirs = block and (other.theirs == key or other.here.startswith(f"{block}."))
    is_ours = near is not None and last_part(near) == last and not is_theirs
    return f"{meant} {other.advice}" if is_ours else other.advice


def _key(override: str) -> str:
    return override.partition("=")[0].lstrip("+~")


def _composed_without(refused: str, arguments: Sequence[str]) -> DictConfig:
    """The config with as many of the other arguments as compose, for the keys that it has."""
    others = [a for a in arguments if a != refused and "=" in a and not a.startswith("-")]
    groups = [a for a in others if "." not in _key(a) and "," not in a]
    GlobalHydra.instance().clear()
    with initialize_config_dir(str(conf_dir()), version_base="1.3"):
        for tried in (others, groups):
            try:
                return compose("config", tried, return_hydra_config=True)
            except (HydraException, OmegaConfBaseException):
                continue
        return compose("config", return_hydra_config=True)


def _keys(config: Any, prefix: str = "") -> Iterator[str]:
    """Dotted keys of all settings and blocks, without those of Hydra that nobody sets."""
    for key, node in config.items_ex(resolve=False):
        name = f"{prefix}{key}"
        yield name
        if isinstance(node, DictConfig) and not node._is_none() and not node._is_missing():
            yield from _keys(node, f"{name}.")


def _options_with(key: str) -> Iterator[tuple[str, list[str]]]:
    """Groups of the key, the innermost first, and those of their options whose file has it.

    Of `scorer.noise_std` these are the scorers with noise; of `scorer@scorer.inner` those with an inner scorer.
    """
    parts = key.rpartition("@")[2].split(".")
    for cut in range(len(parts) - 1, 0, -1):
        rest = ".".join(parts[cut:])
        has = _takes_group if "@" in key else _has
        files: list[Path] = sorted((conf_dir() / "/".join(parts[:cut])).glob("*.yaml"))
        if found := [file.stem for file in files if has(OmegaConf.load(file), rest)]:
            yield "/".join(parts[:cut]), found


def _has(content: Any, key: str) -> bool:
    for part in key.split("."):
        if not isinstance(content, DictConfig) or content._get_node(part) is None:
            return False
        content = content._get_node(part)
    return True


def _takes_group(content: Any, package: str) -> bool:
    """Whether the defaults list of a file puts a group at this package."""
    defaults = content.get("defaults", ()) if isinstance(content, DictConfig) else ()
    return any(str(name).endswith(f"@{package}") for item in defaults if isinstance(item, DictConfig) for name in item)
