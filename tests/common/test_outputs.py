"""Outputs are checked before the work, and nothing is created then."""

from __future__ import annotations

from pathlib import Path

import pytest

from oar_lightning.common.config_check import ConfigError
from oar_lightning.common.outputs import output_folder, output_path, write_text


def test_checking_creates_nothing_and_writing_makes_the_folder(tmp_path: Path) -> None:
    path = output_path(str(tmp_path / "a" / "b" / "x.json"), "task.output")
    assert path == tmp_path / "a" / "b" / "x.json"
    assert not list(tmp_path.iterdir())
    write_text(path, "{}")
    assert path.read_text() == "{}"
    assert output_path(None, "task.output") is None


def test_what_cannot_be_written_names_the_key(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match=r"task\.output=.* is a folder; give a file"):
        output_path(str(tmp_path), "task.output")
    for folder in ("file", "file/x/y"):
        with pytest.raises(ConfigError, match=r"export_to=.*file.* .*is a file\); choose another path"):
            output_folder(str(tmp_path / folder), "export_to")
    for folder in ("/proc/policy", "x" * 300):  # root may write everywhere, says the first one's folder
        with pytest.raises(ConfigError, match=r"^export_to=.* cannot be written \(.*\); choose another path"):
            output_folder(folder, "export_to")
    (tmp_path / "gone").symlink_to(tmp_path / "nowhere")
    with pytest.raises(ConfigError, match="cannot be written"):
        output_folder(str(tmp_path / "gone" / "policy"), "export_to")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "gone"]
