"""The git revision of the code that made a result."""

from __future__ import annotations

import subprocess
from pathlib import Path


def git_revision() -> str:
    """The commit of the checkout that holds this package, with `-dirty` where it has changes; `unknown` outside one."""
    return revision_of(Path(__file__))


def revision_of(file: Path) -> str:
    """The same of a file. One that git does not track, as an installed package within another project's folder, has none."""
    try:
        _git(file, "ls-files", "--error-unmatch", file.name)
        commit, changes = _git(file, "rev-parse", "HEAD"), _git(file, "status", "--porcelain", "--untracked-files=no")
    except (OSError, subprocess.SubprocessError):
        return "unknown"
    return commit + ("-dirty" if changes else "")


def _git(file: Path, *arguments: str) -> str:
    done = subprocess.run(["git", *arguments], cwd=file.parent, capture_output=True, text=True, check=True, timeout=10)
    return done.stdout.strip()
