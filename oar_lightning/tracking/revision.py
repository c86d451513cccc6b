"""The git revision of the code that made a result."""

from __future__ import annotations

import subprocess
from pathlib import Path


def git_revision() -> str:
    """The commit of the checkout that holds this package, with `-dirty` where it has changes; `unknown` outside one."""
    folder = Path(__file__).parent
    try:
        commit = subprocess.run(
            ["git", "rev-parse", "HEAD"], cwd=folder, capture_output=True, text=True, check=True, timeout=10
        ).stdout.strip()
        changes = subprocess.run(
            ["git", "status", "--porcelain", "--untracked-files=no"], cwd=folder, capture_output=True, text=True, timeout=10
        ).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return "unknown"
    return commit + ("-dirty" if changes else "")
