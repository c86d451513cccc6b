"""Outputs are checked before the work, and nothing is created then."""

from __future__ import annotations

from pathlib import Path

import pytest

from oar_lightning.common.config_check import ConfigError
from oar_lightning.common.outputs import new_file, output_folder, output_path, page_folder, replace_file, write_text


def test_checking_creates_nothing_and_writing_makes_the_folder(tmp_path: Path) -> None:
    path = output_path(str(tmp_path / "a" / "b" / "x.json"), "task.output")
    assert path == tmp_path / "a" / "b" / "x.json"
    assert not list(tmp_path.iterdir())
    write_text(path, "{}")
    assert path.read_text() == "{}"
    assert output_path(None, "task.output") is None


def test_what_is_there_is_not_lost(tmp_path: Path) -> None:
    mine = tmp_path / "problems.jsonl"
    assert new_file(str(mine), "audit.output") == mine
    assert new_file(None, "audit.output") is None
    mine.write_text("mine")
    with pytest.raises(ConfigError, match=r"audit\.output=.*problems\.jsonl exists; remove it or name another file"):
        new_file(str(mine), "audit.output")
    page = tmp_path / "README.md"
    assert page_folder(str(tmp_path), "lab.report", "# Credit lab") == tmp_path
    page.write_text("# Credit lab\n\nof yesterday")
    assert page_folder(str(tmp_path), "lab.report", "# Credit lab") == tmp_path
    page.write_text("# My project")
    with pytest.raises(ConfigError, match=r"lab\.report=.*: its README\.md is another page, which would be lost"):
        page_folder(str(tmp_path), "lab.report", "# Credit lab")


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


def test_a_file_that_cannot_be_replaced_leaves_nothing_behind(tmp_path: Path) -> None:
    replace_file(tmp_path / "a", "former")
    replace_file(tmp_path / "a", "new")
    with pytest.raises(UnicodeEncodeError):
        replace_file(tmp_path / "a", "half \udc80")
    (tmp_path / "b").mkdir()
    with pytest.raises(OSError, match="directory"):
        replace_file(tmp_path / "b", "text")
    assert (tmp_path / "a").read_text() == "new"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "b"]
