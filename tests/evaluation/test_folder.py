"""What a resumed evaluation needs to know is there, or nothing is."""

from __future__ import annotations

from pathlib import Path

import pytest

from oar_lightning.common.config_check import ConfigError
from oar_lightning.evaluation import folder
from oar_lightning.evaluation.folder import EvaluationFolder


def test_a_kill_between_its_files_leaves_none_that_is_not_checked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = folder.replace_file

    def killed(path: Path, text: str) -> None:
        if path.name == "config.json":
            raise KeyboardInterrupt
        whole(path, text)

    with monkeypatch.context() as patched:
        patched.setattr(folder, "replace_file", killed)
        with pytest.raises(KeyboardInterrupt):
            EvaluationFolder(tmp_path).start({"seed": 0}, "first", None)
    EvaluationFolder(tmp_path).start({"seed": 0}, "second", None)
    EvaluationFolder(tmp_path).check_policy("second")
    with pytest.raises(ConfigError, match="other weights"):
        EvaluationFolder(tmp_path).check_policy("first")
