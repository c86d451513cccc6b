"""What the package promises to those who install it: names, imports, types, metadata."""

from __future__ import annotations

import ast
import functools
import re
import subprocess
import sys
import tomllib
from collections.abc import Mapping
from importlib.metadata import packages_distributions
from pathlib import Path
from typing import Any

import pytest
import yaml
from support.pages import ROOT, read

import oar_lightning

PROJECT: dict[str, Any] = tomllib.loads(read(ROOT / "pyproject.toml"))
CITATION: dict[str, Any] = yaml.safe_load(read(ROOT / "CITATION.cff"))


def test_every_public_name_can_be_had_and_type_checkers_know_the_same() -> None:
    for name in oar_lightning.__all__:
        assert getattr(oar_lightning, name).__name__ == name
        assert name in dir(oar_lightning)
    (block,) = [node for node in ast.parse(read(ROOT / "oar_lightning" / "__init__.py")).body if isinstance(node, ast.If)]
    seen = {f"{node.module}.{alias.name}" for node in block.body if isinstance(node, ast.ImportFrom) for alias in node.names}
    lent = {f"oar_lightning.{module}.{name}" for module, names in oar_lightning._PUBLIC.items() for name in names}
    assert seen == lent
    with pytest.raises(AttributeError, match="'oar_lightning' has no attribute 'trian'"):
        oar_lightning.trian  # noqa: B018


def test_the_import_of_the_package_imports_nothing_else() -> None:
    program = "import sys; before = {*sys.modules}; import oar_lightning; print(*{*sys.modules} - before)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, cwd=ROOT)
    assert {name.split(".")[0] for name in done.stdout.split()} - set(sys.stdlib_module_names) == {"oar_lightning"}


def declared(*extras: str) -> set[str]:
    """Names of the distributions that pyproject.toml asks for."""
    wanted = [*PROJECT["project"]["dependencies"], *(d for e in extras for d in PROJECT["project"]["optional-dependencies"][e])]
    return {normal(re.split(r"[\s<>=!~\[;]", requirement)[0]) for requirement in wanted}


def normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


@functools.cache
def distributions_of() -> Mapping[str, list[str]]:
    """Top-level module -> the distributions that install it."""
    return packages_distributions()


def imported(*folders: str) -> dict[str, str]:
    """Top-level module -> a file that imports it."""
    found: dict[str, str] = {}
    for path in (path for folder in folders for path in (ROOT / folder).rglob("*.py") if "_build" not in path.parts):
        for node in ast.walk(ast.parse(read(path))):
            modules = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            modules += [str(node.module)] if isinstance(node, ast.ImportFrom) and not node.level else []
            found |= {module.split(".")[0]: str(path) for module in modules}
    return {module: path for module, path in found.items() if module not in sys.stdlib_module_names}


@pytest.mark.parametrize(
    ("folders", "extras"),
    [
        (
            ("oar_lightning", "hydra_plugins"),
            ("lora", "deepspeed", "vllm", "vllm-cpu", "transport", "judge", "sweep", "tensorboard", "wandb", "trackio"),
        ),
        (("tests", "docs"), ("dev", "vllm")),
    ],
    ids=["package", "tests and docs"],
)
def test_what_is_imported_is_declared(folders: tuple[str, ...], extras: tuple[str, ...]) -> None:
    known, allowed = distributions_of(), declared(*extras)
    local = {path.stem for folder in folders for path in [ROOT / folder, *(ROOT / folder).rglob("*")]} | {"oar_lightning"}
    local |= {"browser", "mlflow_ui", "measure", "compare", "collect"} if "tests" in folders else set()  # scripts of reports/
    missing = {
        module: path
        for module, path in imported(*folders).items()
        if module not in local and not {normal(name) for name in known.get(module, [module])} & allowed
    }
    assert missing == {}


def test_developers_have_all_extras_but_vllm() -> None:
    assert declared("lora", "deepspeed", "sweep") <= declared("dev")


def test_the_tested_versions_name_what_is_declared() -> None:
    pinned = {normal(line.split("==")[0]) for line in read(ROOT / "constraints.txt").splitlines() if "==" in line}
    assert declared("dev") - pinned == set()


def test_types_ship_with_the_package() -> None:
    assert (ROOT / "oar_lightning" / "py.typed").is_file()
    assert "Typing :: Typed" in PROJECT["project"]["classifiers"]


def test_the_readme_of_the_package_leads_nowhere_it_cannot() -> None:
    """No picture or link to a file of the repository is left, where those are not."""
    text = read(ROOT / "README.md")
    assert re.search(r"\]\(docs/", text)
    for rule in PROJECT["tool"]["hatch"]["metadata"]["hooks"]["fancy-pypi-readme"]["substitutions"]:
        text = re.sub(rule["pattern"], rule["replacement"], text)
    prose = re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)
    targets = re.findall(r"\]\(([^)\s]+)\)|^\[\w+\]: (\S+)$", prose, re.MULTILINE)
    assert {re.split(r"[:#]", inline or defined)[0] for inline, defined in targets} == {"https"}
    assert "[model]" not in prose
    assert "(Picture in the repository: Credit of one group of completions)" in prose


def test_the_citation_is_of_this_version_and_of_the_paper() -> None:
    assert {"cff-version", "message", "title", "authors"} <= CITATION.keys(), "what the format asks for"
    assert CITATION["version"] == oar_lightning.__version__
    assert CITATION["license"] == PROJECT["project"]["license"]
    (paper,) = CITATION["references"]
    assert paper["url"] == PROJECT["project"]["urls"]["Paper"]


def test_pre_commit_runs_what_make_lint_runs() -> None:
    (recipe,) = re.findall(r"^lint:.*\n((?:\t.*\n)+)", read(ROOT / "Makefile"), re.MULTILINE)
    (repository,) = yaml.safe_load(read(ROOT / ".pre-commit-config.yaml"))["repos"]
    hooks = repository["hooks"]
    assert [hook["entry"] for hook in hooks] == [line.removeprefix("\t$(BIN)/") for line in recipe.splitlines()]
    assert all(hook["language"] == "system" and hook["pass_filenames"] is False for hook in hooks)
    assert "make lint" in read(Path(ROOT / ".ci" / "run"))
