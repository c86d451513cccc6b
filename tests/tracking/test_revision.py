from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from oar_lightning.tracking.revision import revision_of


def git(folder: Path, *arguments: str) -> str:
    identity = ("-c", "user.name=a", "-c", "user.email=a@b")
    return subprocess.run(["git", *identity, *arguments], cwd=folder, capture_output=True, text=True, check=True).stdout.strip()


@pytest.fixture
def module(tmp_path: Path) -> Path:
    """A file that a checkout tracks."""
    file = tmp_path / "checkout" / "package" / "module.py"
    file.parent.mkdir(parents=True)
    file.write_text("a = 1\n")
    git(file.parent, "init", "-q")
    git(file.parent, "add", ".")
    git(file.parent, "commit", "-q", "-m", "first")
    return file


def test_the_revision_is_the_commit_of_the_checkout(module: Path) -> None:
    commit = git(module.parent, "rev-parse", "HEAD")
    assert revision_of(module) == commit
    (module.parent / "new.py").write_text("")
    assert revision_of(module) == commit
    module.write_text("a = 2\n")
    assert revision_of(module) == f"{commit}-dirty"


def test_a_package_that_is_installed_within_another_projects_checkout_has_no_revision(module: Path) -> None:
    installed = module.parent / ".venv" / "package" / "module.py"
    installed.parent.mkdir(parents=True)
    installed.write_text(module.read_text())
    assert revision_of(installed) == "unknown"


def test_no_checkout_no_revision(tmp_path: Path) -> None:
    assert revision_of(tmp_path / "module.py") == "unknown"
    assert revision_of(tmp_path / "missing" / "module.py") == "unknown"
