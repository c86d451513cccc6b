"""Addresses of databases name the file that they seem to name, by the reading of the library that opens them."""

from __future__ import annotations

from pathlib import Path

import pytest
from sqlalchemy.engine import make_url

from oar_lightning.common.config_check import ConfigError
from oar_lightning.common.paths import local_artifacts, local_database


@pytest.mark.parametrize("folder", ["a b", "a#b", "a&b=c", "a+b", "50% done", "a:b@c", "ä", "[a]"])
def test_the_file_is_the_one_that_is_opened(tmp_path: Path, folder: str) -> None:
    uri = f"sqlite:///{tmp_path / folder}/mlflow.db"
    assert local_database(uri) == Path(str(make_url(uri).database))
    assert local_artifacts(uri) == str(tmp_path / folder / "mlartifacts")


@pytest.mark.parametrize("folder", ["a?b", "a%20b"])
def test_a_path_that_would_be_read_otherwise_is_refused(tmp_path: Path, folder: str) -> None:
    uri = f"sqlite:///{tmp_path / folder}/mlflow.db"
    assert Path(str(make_url(uri).database)) != tmp_path / folder / "mlflow.db"
    with pytest.raises(
        ConfigError, match=r"logger\.tracking_uri=.*: with \? or %-codes .* names another file; run in another folder"
    ):
        local_database(uri)


def test_a_server_has_no_file() -> None:
    assert local_database("http://host:5000/%20?x") is None
    assert local_artifacts("http://host:5000") is None
