"""What was kept comes back, whole or not at all; other identities have other values."""

from __future__ import annotations

import contextlib
import itertools
import os
import signal
from pathlib import Path

import pytest

from oar_lightning.lab.store import AT_ONCE, Store


def test_values_come_back(tmp_path: Path) -> None:
    path = tmp_path / "folder" / "cache.db"
    store = Store(path, "me")
    keys = [store.key(b"x", str(i).encode()) for i in range(2 * AT_ONCE + 1)]
    store.put({key: b"%d" % i for i, key in enumerate(keys)})
    store.put({keys[0]: b"another"})
    store.close()
    again = Store(path, "me")
    found = again.get([*keys, again.key(b"y")])
    assert found == {key: b"%d" % i for i, key in enumerate(keys)}, "what is there stays as it is"
    assert again.get([]) == {}
    again.close()


def test_keys_are_of_all_parts_and_the_identity(tmp_path: Path) -> None:
    one, other = (Store(tmp_path / "a.db", name) for name in ("one", "other"))
    parts = [(b"ab", b"c"), (b"a", b"bc"), (b"abc",), (b"", b"abc"), ()]
    assert len({store.key(*p) for store in (one, other) for p in parts}) == 2 * len(parts)
    one.close()
    other.close()


def test_killed_at_any_moment_each_transaction_is_there_or_not(tmp_path: Path) -> None:
    path = tmp_path / "cache.db"
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        with contextlib.suppress(BaseException):
            store = Store(path, "me")
            for i in itertools.count():
                store.put({store.key(b"%d" % i, b"%d" % part): b"value" for part in range(20)})
                os.write(writer, b".")
        os._exit(0)
    said = 0
    while said < 30:
        said += len(os.read(reader, 1))
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    os.set_blocking(reader, False)
    with contextlib.suppress(BlockingIOError):
        said += len(os.read(reader, 10**6))
    store = Store(path, "me")
    counts = [len(store.get([store.key(b"%d" % i, b"%d" % part) for part in range(20)])) for i in range(said + 2)]
    assert set(counts) <= {0, 20}
    assert counts[:said] == [20] * said, "what was done stays"
    store.put({store.key(b"more"): b""})
    store.close()


def test_what_is_no_store_is_refused(tmp_path: Path) -> None:
    (tmp_path / "text.db").write_text("no database" * 100)
    for path in (tmp_path / "text.db", tmp_path, tmp_path / "text.db" / "below"):
        with pytest.raises(ValueError, match=r"lab\.cache=.*name another file"):
            Store(path, "me")
