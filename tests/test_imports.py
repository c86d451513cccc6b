"""Imports go one way: types <- pure maths <- scoring, rollout, data <- module, callbacks <- build <- __main__."""

from __future__ import annotations

import ast
import sys
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

import oar_lightning

ROOT = Path(oar_lightning.__file__).parent
NAME = oar_lightning.__name__

TEXT = {"formula", "answer_units", "answer_spelling", "answer_form"}
"""What answers say; the standard library only."""

PURE = {"types", "advantage", "gating", "loss", "diagnostics", "answer_span", *TEXT}
"""Torch, its shapes and the standard library, and each other."""

LAYERS = (
    {
        "",
        "types",
        "randomness",
        "paths",
        "token_text",
        "config_check",
        "verify_worker",
        "formula",
        "answer_units",
        "answer_spelling",
        "jsonl",
        "attention",
        "batching",
        "key_value_cache",
        "journal",
        "revision",
        "tracking_history",
        "ranks",
        "locks",
        "scopes",
        "precision",
        "launch",
    },
    {"answer_form", "deepspeed_checkpoint", "mlflow_client", "token_budget"},
    PURE - TEXT - {"types"} | {"verify", "language_model", "schedule", "delivery"},
    {"decoder", "mlflow_logger"},
    {"scoring", "data", "reward", "policy", "heatmap", "problem_result", "tracking", "sweep"},
    {"rollout", "experience", "evaluation_metrics", "token_credit"},
    {"collecting", "supervised", "evaluation", "completion_scores", "audit"},
    {"module"},
    {"callbacks", "benchmark", "strategies", "planning"},
    {"deepspeed_strategy"},
    {"reporting"},
    {"build_data", "search_space"},
    {"settings"},
    {"build", "multirun"},
    {"tasks"},
    {"__main__"},
)
"""A module imports from lower layers only; its own layer is closed to it, but for the pure files."""


def modules() -> dict[str, Path]:
    """Dotted name within the package -> file."""
    names = {}
    for path in sorted(ROOT.rglob("*.py")):
        parts = path.relative_to(ROOT).with_suffix("").parts
        names[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return names


MODULES = modules()


def imports(path: Path) -> set[str]:
    """Everything a file imports, wherever it stands, but for what only type checkers see."""
    found: set[str] = set()

    def visit(node: ast.AST) -> None:
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
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


def own(path: Path) -> set[str]:
    """The package's modules that a file imports, by their name within it."""
    return {i.removeprefix(NAME).removeprefix(".") for i in imports(path) if i.split(".")[0] == NAME}


def unit(module: str) -> str:
    """A layer's unit: a sub-package counts as one."""
    return module.split(".")[0]


def layer(module: str) -> int:
    return next(i for i, members in enumerate(LAYERS) if unit(module) in members)


def test_every_module_has_a_layer() -> None:
    units = {unit(m) for m in MODULES}
    listed = set().union(*LAYERS)
    assert sum(map(len, LAYERS)) == len(listed)
    assert units == listed, "a new file needs a place in LAYERS"


@pytest.mark.parametrize("module", sorted(MODULES))
def test_imports_go_one_way(module: str) -> None:
    for target in own(MODULES[module]):
        same_pure = unit(module) in PURE and unit(target) in PURE
        assert unit(target) == unit(module) or layer(target) < layer(module) or same_pure, f"{module} imports {target}"


def test_there_is_no_cycle() -> None:
    graph = {module: own(path) - {module} for module, path in MODULES.items()}
    # a package's __init__ that gathers its modules is not a step on the way from one of them to another
    TopologicalSorter({m: targets for m, targets in graph.items() if MODULES[m].name != "__init__.py"}).prepare()


@pytest.mark.parametrize("module", sorted(PURE))
def test_pure_files_know_torch_and_the_standard_library_only(module: str) -> None:
    allowed = {"torch", "jaxtyping", NAME, *sys.stdlib_module_names}
    assert {i.split(".")[0] for i in imports(MODULES[module])} <= allowed
    assert {unit(t) for t in own(MODULES[module])} <= PURE


def test_only_settings_build_multirun_tasks_and_main_know_hydra() -> None:
    users = {m for m, path in MODULES.items() if any(i.split(".")[0] in ("hydra", "omegaconf") for i in imports(path))}
    assert {unit(m) for m in users} == {"build", "build_data", "multirun", "search_space", "settings", "tasks", "__main__"}


def test_the_worker_and_the_first_checks_import_nothing_slow() -> None:
    """A typo should be reported, and a worker start, without waiting for torch."""
    for module in (
        "formula",
        "answer_units",
        "answer_spelling",
        "answer_form",
        "verify",
        "verify_worker",
        "config_check",
        "paths",
        "revision",
        "multirun",
        "sweep.trial",
        "locks",
        "sweep.process",
        "tasks",
    ):
        assert not {i.split(".")[0] for i in imports(MODULES[module])} & {"torch", "lightning", "transformers"}
    tree = ast.parse(MODULES["__main__"].read_text(encoding="utf-8"))
    at_the_top = {n.module or "" for n in tree.body if isinstance(n, ast.ImportFrom)}
    at_the_top |= {alias.name for n in tree.body if isinstance(n, ast.Import) for alias in n.names}
    assert not {i.split(".")[0] for i in at_the_top} & {"torch", "lightning", "transformers"}
    assert {i for i in at_the_top if i.startswith(NAME)} == {
        NAME,  # tasks and multirun, looked at above
        f"{NAME}.launch",  # torch for what torchrun has started only
        f"{NAME}.paths",
        f"{NAME}.sweep.process",
    }
