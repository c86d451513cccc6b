"""Signatures of this package's classes and functions, read from their source.

What they import takes seconds (torch, Lightning). So a mistyped key, or a value of the wrong type, is told before that.
"""

from __future__ import annotations

import ast
import builtins
import collections.abc
import functools
import typing
from inspect import Parameter
from typing import Any

from oar_lightning.common.paths import PACKAGE

NAMES = {**vars(typing), **vars(collections.abc), **vars(builtins)}
"""What type hints are read with. One that names anything else is left to the check after the imports."""

Parameters = dict[str, Parameter]


class Unclear(Exception):
    """Raised where the source of this package alone does not tell."""


def source_signature(path: str) -> tuple[Parameters, dict[str, Any]] | None:
    """Parameters, and the type hints that are understood, of the class or function at a dotted path.

    None for another package's, and for one whose source is unclear, as with a base class of another package.
    """
    try:
        parameters = _parameters_of(*_find(path))
    except Unclear:
        return None
    hints = {name: _hint(parameter.annotation) for name, parameter in parameters.items()}
    return parameters, {name: hint for name, hint in hints.items() if hint is not Parameter.empty}


def _find(path: str) -> tuple[str, ast.ClassDef | ast.FunctionDef]:
    """The module in which the name at a dotted path is defined, and its definition; imports are followed."""
    module, _, name = path.rpartition(".")
    for node in _parsed(module).body:
        if isinstance(node, (ast.ClassDef, ast.FunctionDef)) and node.name == name:
            return module, node
        if isinstance(node, ast.ImportFrom) and any((alias.asname or alias.name) == name for alias in node.names):
            return _find(f"{node.module}.{name}")
    raise Unclear(path)


@functools.cache
def _parsed(module: str) -> ast.Module:
    package, *parts = module.split(".")
    place = PACKAGE.joinpath(*parts)
    file = next((path for path in (place.with_suffix(".py"), place / "__init__.py") if path.is_file()), None)
    if package != PACKAGE.name or file is None:
        raise Unclear(module)
    return ast.parse(file.read_text(encoding="utf-8"))


def _parameters_of(module: str, node: ast.ClassDef | ast.FunctionDef) -> Parameters:
    if isinstance(node, ast.FunctionDef):
        return _of_function(node)
    bases = [_find(f"{module}.{ast.unparse(base)}") for base in node.bases if ast.unparse(base) != "ABC"]
    if _is_dataclass(node):
        inherited = [_parameters_of(*base) for base in bases if _is_dataclass(base[1])]
        return {name: parameter for one in [*inherited, _fields(node)] for name, parameter in one.items()}
    for member in node.body:
        if isinstance(member, ast.FunctionDef) and member.name == "__init__":
            return dict(list(_of_function(member).items())[1:])
    return _parameters_of(*bases[0]) if bases else {}


def _is_dataclass(node: ast.ClassDef | ast.FunctionDef) -> bool:
    return any(ast.unparse(decorator).startswith("dataclass") for decorator in node.decorator_list)


def _of_function(node: ast.FunctionDef) -> Parameters:
    if node.decorator_list:
        raise Unclear(node.name)
    positional, inner = [*node.args.posonlyargs, *node.args.args], node.args
    defaults = [*[None] * (len(positional) - len(inner.defaults)), *inner.defaults, *inner.kw_defaults]
    pairs = zip([*positional, *inner.kwonlyargs], defaults, strict=True)
    named = {arg.arg: _parameter(arg.arg, arg.annotation, default is not None) for arg, default in pairs}
    others = ((inner.vararg, Parameter.VAR_POSITIONAL), (inner.kwarg, Parameter.VAR_KEYWORD))
    return named | {arg.arg: Parameter(arg.arg, kind) for arg, kind in others if arg is not None}


def _fields(node: ast.ClassDef) -> Parameters:
    """Those of a dataclass itself."""
    found = {}
    for member in node.body:
        if isinstance(member, ast.AnnAssign) and isinstance(member.target, ast.Name):
            if "ClassVar" in ast.unparse(member.annotation) or "init=" in ast.unparse(member):
                raise Unclear(node.name)
            found[member.target.id] = _parameter(member.target.id, member.annotation, member.value is not None)
    return found


def _parameter(name: str, annotation: ast.expr | None, has_default: bool) -> Parameter:
    default = None if has_default else Parameter.empty
    return Parameter(name, Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


def _hint(annotation: ast.expr | None) -> Any:
    """The type that a hint stands for; `empty` for none, and for one with names that are not in `NAMES`."""
    if annotation is None:
        return Parameter.empty
    try:
        hint = eval(ast.unparse(annotation), dict(NAMES))
        return type(None) if hint is None else hint
    except (NameError, TypeError, AttributeError):
        return Parameter.empty
