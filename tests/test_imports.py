"""The architecture: which room of the package may import which, and what each may know of the outside."""

from __future__ import annotations

import ast
import sys
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

import oar_lightning

ROOT = Path(oar_lightning.__file__).parent
NAME = oar_lightning.__name__

FLOORS = (
    ("__main__",),  # compose -> check -> task
    ("tasks", "command"),  # one file a task | the page of --help, completion
    ("wiring",),  # config -> objects
    ("planning", "benchmark", "lab"),  # memory before a run | seconds of a step | which credit is right
    ("training",),  # the LightningModule and its callbacks
    ("evaluation", "inspection"),  # accuracies of a policy | what credit looks like
    ("credit", "rollout"),  # who gets the advantage | engines that sample
    ("policy", "data", "sweep", "reporting"),  # causal LMs | problems | studies | MLflow runs -> a page
    ("answers", "distributed", "objective", "tracking"),  # text -> verdict | ranks | the loss | MLflow
    ("common", "types"),  # what all need | the data between stages
)
"""A room (a folder, or a file at the top) imports from floors below its own only."""

KNOW_HYDRA = {"__main__", "command", "tasks", "wiring", "sweep"}

PURE = {
    "common.ranges",
    "objective",
    "types",
    "credit.component",
    "credit.gates.base",
    "credit.gates.bilevel",
    "credit.gates.direct",
    "credit.gates.signed",
}
"""Torch, its shapes, ranges and the standard library."""

QUICK = {
    "common.config_check",
    "common.ranges",
    "common.source_signatures",
    "common.locks",
    "common.paths",
    "answers.form",
    "answers.formula",
    "answers.intervals",
    "answers.spelling",
    "answers.units",
    "answers.verifier",
    "answers.verifier_worker",
    "command.flags",
    "distributed.launch",
    "sweep.multirun",
    "sweep.process",
    "sweep.trial",
    "tasks",
    "tracking.revision",
    "wiring.keys",
    "wiring.ranges",
    "__main__",
}
"""Read before a mistyped key is told, or by a process that is to start at once: nothing slow at the top of these files."""

SLOW = {"torch", "lightning", "transformers", "mlflow", "optuna", "scipy", "pandas", "matplotlib", "datasets", "deepspeed"}


def modules() -> dict[str, Path]:
    """Dotted name within the package -> file."""
    names = {}
    for path in sorted(ROOT.rglob("*.py")):
        parts = path.relative_to(ROOT).with_suffix("").parts
        names[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return {name: path for name, path in names.items() if name}  # the package itself imports nothing (test_package.py)


MODULES = modules()


def imports(path: Path, only_top: bool = False) -> set[str]:
    """Everything a file imports, wherever it stands (or at its top only), but for what only type checkers see."""
    found: set[str] = set()

    def visit(node: ast.AST) -> None:
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
            return
        if only_top and isinstance(node, ast.FunctionDef):
            return
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path.name}: write absolute imports"
            module = str(node.module)
            for alias in node.names:  # `from package import module` imports the module
                inner = f"{module}.{alias.name}".removeprefix(f"{NAME}.")
                found.add(f"{module}.{alias.name}" if module.startswith(NAME) and inner in MODULES else module)
        for child in ast.iter_child_nodes(node):
            visit(child)

    visit(ast.parse(path.read_text(encoding="utf-8")))
    return found


def own(path: Path, only_top: bool = False) -> set[str]:
    """The package's modules that a file imports, by their name within it."""
    found = {i.removeprefix(NAME).removeprefix(".") for i in imports(path, only_top) if i.split(".")[0] == NAME}
    return found - {""}


def room(module: str) -> str:
    return module.split(".")[0]


def floor(module: str) -> int:
    return next(number for number, rooms in enumerate(FLOORS) if room(module) in rooms)


def test_every_room_has_a_floor() -> None:
    rooms = [name for rooms in FLOORS for name in rooms]
    assert len(rooms) == len(set(rooms)) <= 25
    assert set(rooms) == {room(module) for module in MODULES}, "a new room needs a floor"


@pytest.mark.parametrize("name", [name for rooms in FLOORS for name in rooms])
def test_a_room_imports_from_lower_floors_only(name: str) -> None:
    for module in (m for m in MODULES if room(m) == name):
        for target in own(MODULES[module]):
            assert room(target) == name or floor(target) > floor(module), f"{module} imports {target}"


def test_there_is_no_cycle() -> None:
    graph = {module: own(path) - {module} for module, path in MODULES.items()}
    # a package's __init__ that gathers its modules is not a step on the way from one of them to another
    TopologicalSorter({m: targets for m, targets in graph.items() if MODULES[m].name != "__init__.py"}).prepare()


def is_in(module: str, places: set[str]) -> bool:
    return any(f"{module}.".startswith(f"{place}.") for place in places)


@pytest.mark.parametrize("module", sorted(m for m in MODULES if is_in(m, PURE)))
def test_pure_files_know_torch_and_the_standard_library_only(module: str) -> None:
    known = {"torch", "jaxtyping", "annotated_types", NAME, *sys.stdlib_module_names}
    assert {i.split(".")[0] for i in imports(MODULES[module])} <= known
    assert all(is_in(target, PURE) for target in own(MODULES[module]))


def test_few_rooms_know_hydra() -> None:
    users = {m for m, path in MODULES.items() if any(i.split(".")[0] in ("hydra", "omegaconf") for i in imports(path))}
    assert {room(m) for m in users} == KNOW_HYDRA


def test_ranks_knows_nothing_of_lightning() -> None:
    assert "lightning" not in {i.split(".")[0] for i in imports(MODULES["distributed.ranks"])}


def reached(module: str) -> set[str]:
    """The modules that the import of one imports, by themselves or by what they import; packages on the way included."""
    seen: set[str] = set()
    waiting = [module]
    while waiting:
        current = waiting.pop()
        parents = {current.rsplit(".", n)[0] for n in range(current.count(".") + 1)}
        for name in (parents | {current}) & set(MODULES) - seen:
            seen.add(name)
            waiting += own(MODULES[name], only_top=True)
    return seen


def leads_to_none_of(module: str, packages: set[str]) -> None:
    """Hold what a module's import leads to against packages; imports within functions do not count."""
    for name in reached(module):
        slow = {i.split(".")[0] for i in imports(MODULES[name], only_top=True)} & packages
        assert not slow, f"{module} leads to {name}, which imports {', '.join(slow)}"


@pytest.mark.parametrize("module", sorted(QUICK))
def test_quick_files_lead_to_nothing_slow(module: str) -> None:
    leads_to_none_of(module, SLOW)


def test_training_leads_to_nothing_that_not_every_run_needs() -> None:
    """MLflow is not imported with logger=none, for example."""
    leads_to_none_of("tasks.train", SLOW - {"torch", "lightning", "transformers"} | {"peft", "accelerate", "math_verify"})


@pytest.mark.parametrize("module", ["training.train", "inspection.score"])
def test_programs_need_no_hydra(module: str) -> None:
    """What the package lends to programs leads to neither Hydra nor its configs."""
    known = {"hydra", "omegaconf", "hydra_plugins"}
    users = {name for name in reached(module) if {i.split(".")[0] for i in imports(MODULES[name], only_top=True)} & known}
    assert users == set()
