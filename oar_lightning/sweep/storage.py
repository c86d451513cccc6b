"""Optuna's relational storage on SQLite, made to work with SQLAlchemy 2 and with several processes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import alembic.migration
from optuna.storages import RDBStorage
from optuna.storages._rdb.storage import _VersionManager

from oar_lightning.common.config_check import ConfigError
from oar_lightning.common.locks import FileLock
from oar_lightning.common.messages import first_line
from oar_lightning.common.paths import addressable


def _stamp(self: Any, revision: str) -> None:
    # Optuna 2.10 stamps on a connection that SQLAlchemy 2 never commits: the schema version would stay unknown
    with self.engine.begin() as connection:
        context = alembic.migration.MigrationContext.configure(connection)
        context.stamp(self._create_alembic_script(), revision)


_VersionManager._set_alembic_revision = _stamp


class SweepStorage(RDBStorage):
    """A study's database in a file, given by its path or as `sqlite:///<path>`; its folder is made.

    A writer waits up to `timeout` seconds for another's transaction before it fails with "database is locked".

    Raises:
        ConfigError: where it cannot be made, is no such database, is on a server, or an address cannot name it.
    """

    def __init__(self, path: str | Path, timeout: float = 60.0) -> None:
        name = str(path).removeprefix("sqlite:///")
        scheme, is_address, _ = name.partition("://")
        if is_address:  # the rest may hold a password
            raise ConfigError(
                f"hydra.sweeper.storage={scheme}://...: a study is in an SQLite file, not on a server; give the file's path"
            )
        self.path = addressable(Path(name).expanduser().resolve(), "hydra.sweeper.storage")
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with FileLock(self.path.with_name(f".{self.path.name}.lock")):  # two processes would both create the tables
                super().__init__(f"sqlite:///{self.path}", engine_kwargs={"connect_args": {"timeout": timeout}})
        except Exception as error:  # of several libraries
            raise ConfigError(
                f"hydra.sweeper.storage={self.path} cannot be used ({first_line(error)}); name another file, or remove it"
            ) from error
