"""The house: the package's rooms on their floors, drawn from the table that tests/test_imports.py holds the imports to."""

from __future__ import annotations

import ast
import html
import importlib.util
from pathlib import Path
from types import ModuleType

from markdown_text import code, escaped, table

ROOT = Path(__file__).parents[2]
WIDTH, HEIGHT, GAP = 150, 44, 14


def house() -> str:
    rules = _rules()
    return f"{drawing(rules.FLOORS)}\n\n{rooms(rules)}"


def _rules() -> ModuleType:
    """tests/test_imports.py as a module."""
    spec = importlib.util.spec_from_file_location("house_rules", ROOT / "tests" / "test_imports.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def drawing(floors: tuple[tuple[str, ...], ...]) -> str:
    """An SVG with a box for each room; a room imports from the floors below its own only."""
    across = max(map(len, floors))
    width, height = across * (WIDTH + GAP) + GAP, len(floors) * (HEIGHT + GAP) + GAP
    shapes = []
    for number, names in enumerate(floors):
        y = GAP + number * (HEIGHT + GAP)
        start = (width - len(names) * (WIDTH + GAP) + GAP) / 2
        for place, name in enumerate(names):
            x = start + place * (WIDTH + GAP)
            shapes.append(f'<rect x="{x:g}" y="{y}" width="{WIDTH}" height="{HEIGHT}" rx="6" class="room"/>')
            shapes.append(f'<text x="{x + WIDTH / 2:g}" y="{y + HEIGHT / 2 + 5:g}" class="room">{html.escape(name)}</text>')
    title = "The rooms of the package, floor by floor; imports go down only"
    return (
        f'<div><svg class="house" role="img" aria-label="{title}" viewBox="0 0 {width} {height}" '
        f'xmlns="http://www.w3.org/2000/svg">{"".join(shapes)}</svg></div>'
    )


def rooms(rules: ModuleType) -> str:
    rows = []
    for number, names in enumerate(rules.FLOORS, 1):
        for name in names:
            modules = [module for module in rules.MODULES if rules.room(module) == name]
            used = {rules.room(target) for module in modules for target in rules.own(rules.MODULES[module])} - {name}
            rows.append(
                [str(number), code(name), escaped(_first_line(rules.MODULES[name])), ", ".join(map(code, sorted(used)))]
            )
    return table(["floor", "room", "what lives there", "imports from"], rows)


def _first_line(path: Path) -> str:
    docstring = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8")))
    assert docstring, f"{path} needs a docstring that says what lives in this room"
    return docstring.splitlines()[0]
