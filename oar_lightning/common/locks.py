"""File locks that the kernel releases when their holders end, even by kill -9.

Own code, since a sweep hands a lock on to the process of its trial, so that the trial keeps it when the sweep is killed:
`filelock` takes the same kind of lock, but its open file is not to be had.
"""

from __future__ import annotations

import fcntl
import os
from pathlib import Path
from types import TracebackType

RUN_LOCK = "run.lock"
"""Held in a run's folder from its start until its process has ended."""


class FileLock:
    """An exclusive flock on a file. A child process that inherits the open file (`descriptor`) holds the lock too, until it
    ends.

    The lock works between the processes of one machine, and between machines where the file system carries flock (NFS on
    Linux does).
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.descriptor: int | None = None

    def acquire(self, wait: bool = True) -> bool:
        """Take the lock and return True; without `wait`, return False where another process holds it."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        while True:
            descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT, 0o644)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
                current = self._is_at_its_path(descriptor)
            except BlockingIOError:
                os.close(descriptor)
                return False
            except BaseException:
                os.close(descriptor)
                raise
            if current:
                self.descriptor = descriptor
                return True
            os.close(descriptor)  # whoever held it has removed it, and the next one makes another

    def _is_at_its_path(self, descriptor: int) -> bool:
        try:
            return os.path.samestat(os.fstat(descriptor), os.stat(self.path))
        except FileNotFoundError:
            return False

    def release(self) -> None:
        """Give the lock up; a child process that inherited the open file still holds it."""
        if self.descriptor is not None:
            os.close(self.descriptor)
            self.descriptor = None

    def __enter__(self) -> FileLock:
        self.acquire()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.release()
