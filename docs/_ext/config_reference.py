"""The config reference: every key of conf/ with its default and meaning.

Keys, defaults and comments are read from the YAML files. Where a mapping has a `_target_` of this package, the meaning of its
keys is in that class's docstring (`Args:`).
"""

from __future__ import annotations

import inspect
import itertools
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import yaml
from hydra.utils import get_object
from markdown_text import code, escaped, table
from sphinx.ext.napoleon import Config, GoogleDocstring

from oar_lightning.command.comments import Header
from oar_lightning.common.paths import conf_dir


@dataclass(frozen=True)
class Key:
    """One line of a config file: a value, or the beginning of a mapping (`default` is then empty)."""

    path: str
    default: str
    comment: str
    target: str
    """Of the mapping that the key is in; empty where that is plain."""


def config_reference() -> str:
    root = conf_dir()
    files = sorted(root.rglob("*.yaml"), key=lambda path: (path.relative_to(root).parent.parts, path.stem))
    packages = _packages(root)
    parts, group = [], None
    for path in files:
        relative = path.relative_to(root).with_suffix("")
        if relative.parent != group:
            group = relative.parent
            parts.append(f"## {code(group.as_posix()) if group.parts else 'Defaults of every run'}")
        parts.append(_choice_of_a_group(path, relative, packages) if group.parts else _defaults_of_all(path))
    return "\n\n".join(parts)


def choices(folder: Path) -> str:
    """The files of a folder, each with what its first comment says."""
    return table(["name", "what it is"], [[code(p.stem), escaped(Header.of(p).words)] for p in sorted(folder.glob("*.yaml"))])


def _choice_of_a_group(path: Path, relative: Path, packages: dict[str, str]) -> str:
    text, header = path.read_text(encoding="utf-8"), Header.of(path)
    group = relative.parent
    package = header.package or packages.get(relative.as_posix()) or packages.get(group.as_posix()) or ".".join(group.parts)
    keys = walk(text)
    defaults = _defaults(text)
    parts = [
        f"### {code(f'{group.as_posix()}={relative.name}')}",
        escaped(header.words),
        "```\n" + "\n".join(header.commands) + "\n```" if header.commands else "",
        "Includes " + ", ".join(map(code, defaults)) + "." if defaults else "",
        _keys(keys, "" if package == "_global_" else f"{package}."),
    ]
    return "\n\n".join(part for part in parts if part)


def _defaults_of_all(path: Path) -> str:
    """config.yaml: its plain keys, and a section for each block."""
    text = path.read_text(encoding="utf-8")
    blocks = {name: list(keys) for name, keys in itertools.groupby(walk(text), key=lambda key: key.path.split(".")[0])}
    plain = [key for keys in blocks.values() for key in keys if len(keys) == 1]
    chosen = "Groups: " + ", ".join(map(code, _defaults(text))) + "."
    sections = [f"### {code(name)}\n\n{_keys(keys, '')}" for name, keys in blocks.items() if len(keys) > 1]
    return "\n\n".join([escaped(Header.of(path).words), chosen, _keys(plain, ""), *sections])


def _keys(keys: list[Key], prefix: str) -> str:
    """A table of keys; nothing for none. A plain block has no line of its own, unless it is commented on."""
    shown = [key for key in keys if key.default or key.comment]
    target = next((key.target for key in keys if key.target), "")
    built = f"Built as {code(target)}.\n\n" if target and all("." not in k.path for k in keys if k.target == target) else ""
    rows = [[code(prefix + key.path), code(key.default), meaning(key)] for key in shown]
    return built + table(["key", "default", "meaning"], rows) if rows else built.strip()


def walk(text: str) -> list[Key]:
    """All keys of a YAML file in order, but `defaults` and those with underscores around (`_target_`)."""
    root = yaml.compose(text)
    return list(_walk(root, text, "", top=True)) if root is not None else []


def _walk(node: yaml.MappingNode, text: str, prefix: str, top: bool = False) -> Iterator[Key]:
    entries = {key.value: (key, value) for key, value in node.value}
    target = entries["_target_"][1].value if "_target_" in entries else ""
    for name, (key, value) in entries.items():
        if re.fullmatch(r"_\w+_", name) or (top and name == "defaults"):
            continue
        block = isinstance(value, yaml.MappingNode) and value.value and not value.flow_style
        end = key.end_mark.index + 1 if block or value.end_mark.line > value.start_mark.line else value.end_mark.index
        found = re.match(r"[ \t]*#[ ]*(.*)", text[end:])
        inner = {k.value: v.value for k, v in value.value}.get("_target_", "") if block else ""
        default = f"→ {inner.rsplit('.', 1)[-1]}" if inner else "" if block else _source(value, text)
        yield Key(prefix + name, default, found[1].strip() if found else "", target)
        if block:
            yield from _walk(value, text, f"{prefix}{name}.")


def _source(value: yaml.Node, text: str) -> str:
    return " ".join(text[value.start_mark.index : value.end_mark.index].split())


def _defaults(text: str) -> list[str]:
    """The entries of a file's defaults list, as one would write them on the command line."""
    found = (yaml.safe_load(text) or {}).get("defaults", [])
    items = [item if isinstance(item, dict) else {item: None} for item in found if item != "_self_"]
    return [_choice(str(name), value) for item in items for name, value in item.items()]


def _choice(name: str, value: Any) -> str:
    value = "[" + ",".join(map(str, value)) + "]" if isinstance(value, list) else value
    name = name.removeprefix("override ").removeprefix("/")
    return name if value is None else f"{name}={value}"


def _packages(root: Path) -> dict[str, str]:
    """Group, or group/name -> the package that a defaults list puts it into (`group@_global_.package`)."""
    found = {}
    for path in root.rglob("*.yaml"):
        for entry in _defaults(path.read_text(encoding="utf-8")):
            name, _, value = entry.partition("=")
            group, at, package = name.partition("@")
            if at and (package.startswith("_global_.") or path.parent == root):
                key = "/".join(part for part in (group.strip("/"), value) if part)
                found[key] = package.removeprefix("_global_.")
    return found


def meaning(key: Key) -> str:
    """The docstring's words, then the comment of the YAML file."""
    documented = arguments(key.target).get(key.path.rsplit(".", 1)[-1], "") if key.target.startswith("oar_lightning.") else ""
    restated = key.comment.rstrip(".").lower() in documented.replace("`", "").lower()
    return "<br>".join(escaped(words) for words in (documented, "" if restated else key.comment) if words)


@cache
def arguments(target: str) -> dict[str, str]:
    """Name -> meaning, as the class's docstring (or that of the classes it is made from) has it."""
    found = get_object(target)
    classes = reversed(found.__mro__[:-1]) if inspect.isclass(found) else [found]
    out: dict[str, str] = {}
    for documented in classes:
        lines = str(GoogleDocstring(inspect.cleandoc(documented.__doc__ or ""), Config(napoleon_use_param=True)))
        for name, words in re.findall(r"^:param (\w+): (.*(?:\n[ \t]+.*)*)", lines, re.MULTILINE):
            out[name] = " ".join(words.split())
    return out
