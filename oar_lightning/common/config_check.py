"""Checks a composed config before anything slow is imported or built: the signatures of its targets are the schema.

Every mapping with a ``_target_`` is checked against that target's signature, so a plug-in's keys are checked like the
package's own. Keys of other mappings are left to their readers, except at the top level.
"""

from __future__ import annotations

import difflib
import importlib
import inspect
import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, get_args, get_origin

from beartype import BeartypeConf
from beartype.door import is_bearable
from beartype.roar import BeartypeException

from oar_lightning.common.messages import named_line
from oar_lightning.common.ranges import broken, demand, hints_of, kinds, refusal
from oar_lightning.common.source_signatures import UNREAD, SourceSignature, source_signature

log = logging.getLogger(__name__)

READS_TRAINING_DATA = ("train", "warm_start", "decontaminate", "benchmark")
"""Tasks for which data.train must be given."""

HYDRA_KEYS = {"_target_", "_partial_", "_recursive_", "_convert_", "_args_"}


class ConfigError(ValueError):
    """A config that cannot run; the message names key, value and remedy."""


def warn_idle(group: str, idle: Mapping[str, str]) -> None:
    """Warn of each setting of a group that has no effect: "key=value" -> why."""
    for setting, why in idle.items():
        log.warning("%s.%s: without effect, since %s; leave it out", group, setting, why)


def check_keys(present: Iterable[str], known: Iterable[str], where: str) -> None:
    """Raise ConfigError for the first unknown key, with the nearest known one."""
    known = sorted(known)
    for key in present:
        if key not in known:
            name = f"{where}.{key}" if where else key
            near = nearest(key, known)
            hint = f"did you mean {where + '.' if where else ''}{near}? " if near else ""
            raise ConfigError(
                f"unknown key {name}; {hint}the keys {'of ' + where if where else 'here'} are: {', '.join(known)}"
                if known
                else f"unknown key {name}: {where} takes none; leave it out, e.g. by ~{name}"
            )


def nearest(key: str, known: Iterable[str]) -> str | None:
    """The known dotted key that was probably meant; None where none is similar.

    The last part alone counts too, a little less: `tau` and `trainer.lr` mean `gate.tau` and `optimizer.lr`.
    """

    def likeness(other: str) -> float:
        whole = difflib.SequenceMatcher(None, key, other).ratio()
        last = difflib.SequenceMatcher(None, key.rpartition(".")[2], other.rpartition(".")[2]).ratio()
        at_top = "." in key and "." not in other  # a block is seldom meant where a key of one was written
        return max(whole, 0.9 * last + 0.05 * whole) * (0.75 if at_top else 1)

    found = max(known, key=likeness, default=None)
    return found if found is not None and likeness(found) >= 0.6 else None


def check_targets(config: Mapping[str, Any], import_them: bool = True) -> None:
    """Check every ``_target_`` mapping of a resolved config against its target's signature.

    Args:
        import_them: False: read what this package's source says, which takes no time, and leave the rest unchecked.

    Raises:
        ConfigError: for a target that cannot be imported, an unknown key, a missing one, or a value of the wrong type or range.
    """
    for where, node in _targets(config, ""):
        if not isinstance(node["_target_"], str):
            raise ConfigError(f"{where}._target_={node['_target_']} is no dotted path of a class or a function; name one")
        signature = _signature(node["_target_"], where) if import_them else source_signature(str(node["_target_"]))
        if signature is None:
            continue
        parameters, hints, rules = signature
        keys = [k for k in node if k not in HYDRA_KEYS]
        takes_any = any(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters.values())
        named = {n: p for n, p in parameters.items() if p.kind not in (p.VAR_KEYWORD, p.VAR_POSITIONAL)}
        if not takes_any:
            _check_class_keys(keys, named, where, str(node["_target_"]))
        required = [n for n, p in named.items() if p.default is p.empty and n not in keys]
        if required and not node.get("_partial_"):
            is_function = str(node["_target_"]).rpartition(".")[2][:1].islower()
            whole = f", or +{where}._partial_=true where {where} is the function itself" * is_function
            raise ConfigError(f"{where}: {node['_target_']} needs {', '.join(f'{where}.{n}' for n in required)}; set it{whole}")
        for key in keys:
            if key in hints:
                check_value(node[key], hints[key], f"{where}.{key}")
        values = {name: p.default for name, p in named.items() if p.default not in (p.empty, UNREAD)}
        values |= {key: node[key] for key in keys}
        if text := broken(rules, {name: value for name, value in values.items() if not _holds_target(value)}):
            raise ConfigError(text)


def _check_class_keys(keys: Sequence[str], known: Iterable[str], where: str, target: str) -> None:
    """`check_keys`; several unknown ones are rather those of the class before an override of ``_target_`` alone.

    Raises:
        ConfigError: names the keys and the remedy.
    """
    known = list(known)
    unknown = [key for key in keys if key not in known]
    if len(unknown) < 2 or "[" in where or any(nearest(key, known) for key in unknown):
        return check_keys(keys, known, where)
    own = f"its keys are {', '.join(known)}" if known else "it takes none"
    raise ConfigError(
        f"{where}._target_={target} does not take {', '.join(f'{where}.{key}' for key in unknown)}, which are another class's; "
        f"write the whole object, '~{where}' '+{where}={{_target_: {target}}}' ({own})"
    )


def _targets(node: Any, where: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
    if isinstance(node, Mapping):
        if "_target_" in node:
            yield where, node
        for key, value in node.items():
            yield from _targets(value, f"{where}.{key}" if where else str(key))
    elif isinstance(node, list):
        for index, value in enumerate(node):
            yield from _targets(value, f"{where}[{index}]")


def _signature(path: str, where: str) -> SourceSignature:
    target = _locate(path, where)
    return SourceSignature(_parameters(target), hints_of(target))


def _locate(path: str, where: str) -> Any:
    """The object at a dotted path: the longest importable module prefix, then attributes."""
    parts = path.split(".")
    for cut in range(len(parts) - 1, 0, -1):
        try:
            target: Any = importlib.import_module(".".join(parts[:cut]))
        except ModuleNotFoundError as error:
            if error.name and f"{path}.".startswith(f"{error.name}."):
                continue
            raise ConfigError(f"{where}._target_={path}: its module needs {error.name}, which is not installed") from error
        except Exception as error:  # whatever the module does when it is imported
            raise ConfigError(
                f"{where}._target_={path}: its module cannot be imported ({named_line(error)}); correct it"
            ) from error
        try:
            for part in parts[cut:]:
                target = getattr(target, part)
        except AttributeError as error:
            raise ConfigError(f"{where}._target_={path}: {error}") from error
        if not callable(target):
            raise ConfigError(f"{where}._target_={path} is a {type(target).__name__}; name a class or a function")
        return target
    raise ConfigError(f"{where}._target_={path}: no such module; is the folder of your file on PYTHONPATH?")


def _parameters(target: Any) -> Mapping[str, inspect.Parameter]:
    try:
        return inspect.signature(target).parameters
    except ValueError:  # written in C, without a signature: nothing to check by
        return {"any": inspect.Parameter("any", inspect.Parameter.VAR_KEYWORD)}


def defaults_of(path: str) -> dict[str, Any]:
    """The default values of the parameters of a `_target_`, as far as YAML can hold them."""
    parameters = _parameters(_locate(path, "")).items()
    return {name: p.default for name, p in parameters if isinstance(p.default, bool | int | float | str | None | tuple | list)}


def check_value(value: Any, hint: Any, where: str) -> None:
    """Raise ConfigError for a value that is not of a type or in the ranges that a hint states."""
    if _holds_target(value):
        return  # built into an object later; its own target is checked where it stands
    if isinstance(value, Mapping) and (entry := _entry_of(hint)) is not None:
        for key, one in value.items():
            check_value(one, entry, f"{where}.{key}")
    try:
        # YAML has no tuples: a list stands for either
        forms = [value, tuple(value)] if isinstance(value, list) else [value]
        fits = any(is_bearable(form, hint, conf=BeartypeConf(is_pep484_tower=True)) for form in forms)
    except BeartypeException:  # a hint of another library that beartype does not understand: nothing to check by
        return
    types = {kind.type for kind in kinds(hint)}
    is_number = isinstance(value, bool) and types & {int, float} and bool not in types  # to Python, True is an integer
    if not fits or is_number:
        raise ConfigError(demand(where, value, hint))
    if text := refusal(where, value, hint):
        raise ConfigError(text)


def _entry_of(hint: Any) -> Any:
    """The type of the values of a mapping; None where the hint allows none, or mappings of several kinds."""
    found = [get_args(kind.type) for kind in kinds(hint) if get_origin(kind.type) in (dict, Mapping)]
    return found[0][1] if len(found) == 1 else None


def _holds_target(value: Any) -> bool:
    return next(_targets(value, ""), None) is not None
