"""Signatures of classes and functions, read from their source: those of this package, Lightning's and of torch's optimizers.

What they import takes seconds. So a mistyped key, or a value of the wrong type or range, is told before that.
"""

from __future__ import annotations

import ast
import builtins
import functools
import importlib
import importlib.util
from collections.abc import Mapping, Sequence
from inspect import Parameter
from pathlib import Path
from typing import Any, NamedTuple

from oar_lightning.common.ranges import Rule

READ = ("oar_lightning.", "lightning.", "torch.optim.")
"""Modules whose source is read. Others are left to the check after the imports."""

QUICK = ("typing", "collections.abc", "annotated_types", "oar_lightning.common.ranges")
"""Modules that take no time to import: what a hint has of them is taken from there."""

UNREAD = object()
"""In place of a default value that cannot be read."""

Parameters = dict[str, Parameter]


class SourceSignature(NamedTuple):
    """Parameters, the type hints that could be read, and what parameters have to fulfil together (see `checked`)."""

    parameters: Mapping[str, Parameter]
    hints: Mapping[str, Any]
    rules: Sequence[Rule] = ()


class Unclear(Exception):
    """Raised where the source that is read does not tell."""


def source_signature(path: str) -> SourceSignature | None:
    """The signature of the class or function at a dotted path.

    None for one that is not in `READ`, and for one whose source is unclear, as with a base class that is not.
    """
    try:
        module, node = _find(path)
        parameters = _parameters_of(module, node)
        rules = _rules(module, node)
    except Unclear:
        return None
    hints = {name: parameter.annotation for name, parameter in parameters.items()}
    return SourceSignature(parameters, {name: hint for name, hint in hints.items() if hint is not Parameter.empty}, rules)


def _find(path: str) -> tuple[str, ast.ClassDef | ast.FunctionDef]:
    """The module in which the name at a dotted path is defined, and its definition; imports are followed."""
    module, _, name = path.rpartition(".")
    for node in _parsed(module).body:
        if isinstance(node, (ast.ClassDef, ast.FunctionDef)) and node.name == name:
            return module, node
        if (origin := _imported_from(node, module, name)) is not None:
            return _find(origin)
    raise Unclear(path)


def _imported_from(node: ast.stmt, module: str, name: str) -> str | None:
    """The dotted path that an import statement of a module binds to a name; None where it is none."""
    names = [one.name for one in node.names if (one.asname or one.name) == name] if isinstance(node, ast.ImportFrom) else []
    if not isinstance(node, ast.ImportFrom) or not names:
        return None
    package = module if _file(module).name == "__init__.py" else module.rpartition(".")[0]
    return importlib.util.resolve_name("." * node.level + (node.module or ""), package) + f".{names[0]}"


@functools.cache
def _parsed(module: str) -> ast.Module:
    return ast.parse(_file(module).read_text(encoding="utf-8"))


@functools.cache
def _file(module: str) -> Path:
    top, *parts = module.split(".")
    if not f"{module}.".startswith(READ) or (found := importlib.util.find_spec(top)) is None:
        raise Unclear(module)
    for folder in found.submodule_search_locations or ():
        place = Path(folder, *parts)
        for file in (place.with_suffix(".py"), place / "__init__.py"):
            if file.is_file():
                return file
    raise Unclear(module)


def _parameters_of(module: str, node: ast.ClassDef | ast.FunctionDef) -> Parameters:
    if isinstance(node, ast.FunctionDef):
        return _of_function(module, node)
    bases = [_find(f"{module}.{ast.unparse(base)}") for base in node.bases if ast.unparse(base) != "ABC"]
    if _is_dataclass(node):
        inherited = [_parameters_of(*base) for base in bases if _is_dataclass(base[1])]
        return {name: parameter for one in [*inherited, _fields(module, node)] for name, parameter in one.items()}
    for member in node.body:
        if isinstance(member, ast.FunctionDef) and member.name == "__init__":
            return dict(list(_of_function(module, member).items())[1:])
    return _parameters_of(*bases[0]) if bases else {}


def _is_dataclass(node: ast.ClassDef | ast.FunctionDef) -> bool:
    return any(ast.unparse(decorator).startswith("dataclass") for decorator in node.decorator_list)


def _of_function(module: str, node: ast.FunctionDef) -> Parameters:
    if {ast.unparse(decorator) for decorator in node.decorator_list} - {"_defaults_from_env_vars"}:  # Lightning's keeps them
        raise Unclear(node.name)
    positional, inner = [*node.args.posonlyargs, *node.args.args], node.args
    defaults = [*[None] * (len(positional) - len(inner.defaults)), *inner.defaults, *inner.kw_defaults]
    pairs = zip([*positional, *inner.kwonlyargs], defaults, strict=True)
    named = {arg.arg: _parameter(module, arg.arg, arg.annotation, default) for arg, default in pairs}
    others = ((inner.vararg, Parameter.VAR_POSITIONAL), (inner.kwarg, Parameter.VAR_KEYWORD))
    return named | {arg.arg: Parameter(arg.arg, kind) for arg, kind in others if arg is not None}


def _fields(module: str, node: ast.ClassDef) -> Parameters:
    """Those of a dataclass itself."""
    found = {}
    for member in node.body:
        if isinstance(member, ast.AnnAssign) and isinstance(member.target, ast.Name):
            if "ClassVar" in ast.unparse(member.annotation):
                continue
            if "init=" in ast.unparse(member):
                raise Unclear(node.name)
            default = None if _without_default(member.value) else member.value
            found[member.target.id] = _parameter(module, member.target.id, member.annotation, default)
    return found


def _without_default(value: ast.expr | None) -> bool:
    """Whether it is a `field(...)` that gives none."""
    given = {one.arg for one in value.keywords} if isinstance(value, ast.Call) else set()
    return isinstance(value, ast.Call) and ast.unparse(value.func) == "field" and not given & {"default", "default_factory"}


def _parameter(module: str, name: str, annotation: ast.expr | None, default: ast.expr | None) -> Parameter:
    value = Parameter.empty if default is None else _evaluated(module, default, UNREAD)
    hint = Parameter.empty if annotation is None else _evaluated(module, annotation, Parameter.empty)
    return Parameter(name, Parameter.KEYWORD_ONLY, default=value, annotation=type(None) if hint is None else hint)


def _evaluated(module: str, expression: ast.expr, otherwise: Any) -> Any:
    """What an expression at the top of a module stands for; `otherwise` where it has names that cannot be read."""
    try:
        return eval(ast.unparse(expression), {"__builtins__": vars(builtins)}, _Names(module))
    except (NameError, TypeError, AttributeError, Unclear):
        return otherwise


def _rules(module: str, node: ast.ClassDef | ast.FunctionDef) -> Sequence[Rule]:
    calls = [one for one in node.decorator_list if isinstance(one, ast.Call) and ast.unparse(one.func) == "checked"]
    return [rule for call in calls for one in call.args if isinstance(rule := _evaluated(module, one, None), Rule)]


class _Names(dict[str, Any]):
    """What names mean in the hints of a module."""

    def __init__(self, module: str) -> None:
        super().__init__()
        self.module = module

    def __missing__(self, name: str) -> Any:
        for node in _parsed(self.module).body:
            if isinstance(node, ast.ClassDef) and node.name == name:
                return _stand_in(self.module, node)
            if isinstance(node, ast.Assign) and [ast.unparse(target) for target in node.targets] == [name]:
                return eval(ast.unparse(node.value), {"__builtins__": vars(builtins)}, self)
            if (origin := _imported_from(node, self.module, name)) is not None:
                module, _, inner = origin.rpartition(".")
                return getattr(importlib.import_module(module), inner) if module in QUICK else _Names(module)[inner]
        raise KeyError(name)  # it may be a built-in name


def _stand_in(module: str, node: ast.ClassDef) -> type:
    """In place of a class: of its name and fields, and without instances, as a config has none. A protocol may have some."""
    if any("Protocol" in ast.unparse(base) for base in node.bases):
        raise Unclear(node.name)
    fields = [ast.unparse(one.target) for one in node.body if isinstance(one, ast.AnnAssign)]
    return type(node.name, (), {"__module__": module, "__annotations__": dict.fromkeys(fields, Any)})
