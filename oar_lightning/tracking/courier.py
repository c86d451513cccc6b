"""The thread that delivers a run's records to MLflow."""

from __future__ import annotations

import logging
import threading
import time
from typing import TYPE_CHECKING

from oar_lightning.common.credentials import without_users
from oar_lightning.common.messages import one_line

if TYPE_CHECKING:  # it imports MLflow, which takes seconds
    from oar_lightning.tracking.delivery import Delivery

log = logging.getLogger(__name__)


class Courier(threading.Thread):
    """A thread that delivers every `every_s` seconds; while the store is away the interval doubles, up to a minute."""

    LONGEST_PAUSE_S = 60.0

    def __init__(self, delivery: Delivery, every_s: float) -> None:
        super().__init__(name="mlflow-courier", daemon=True)
        self.delivery = delivery
        self.every_s = every_s
        self.problem: Exception | None = None
        """Why the last attempt failed."""
        self.cpu_s = 0.0
        self._asked = self._answered = 0  # flushes so far, and those of them that an attempt has served
        self._stopping = False
        self._changed = threading.Condition()

    def run(self) -> None:
        pause = self.every_s
        while not self._stopping:
            with self._changed:
                self._changed.wait_for(lambda: self._asked > self._answered or self._stopping, pause)
                asked = self._asked
            self._attempt()
            pause = self.every_s if self.problem is None else min(2 * pause, self.LONGEST_PAUSE_S)
            with self._changed:
                self._answered = asked
                self._changed.notify_all()

    def _attempt(self) -> None:
        started = time.thread_time()
        try:
            delivered = self.delivery.deliver()
        except Exception as error:  # no error of delivery may stop the training; the journal keeps the records
            if self.problem is None:
                server = without_users(self.delivery.tracking_uri)
                log.warning("MLflow at %s takes no records, which are kept: %s", server, short(error))
            self.problem = error
        else:
            if self.problem is not None:
                log.info("MLflow is back; delivered %d records", delivered)
            self.problem = None
        self.cpu_s += time.thread_time() - started

    def flush(self, timeout_s: float) -> bool:
        """Make one attempt to deliver all records so far, and wait at most `timeout_s` for it; returns whether it succeeded."""
        with self._changed:
            self._asked += 1
            number = self._asked
            self._changed.notify_all()
            answered = self._changed.wait_for(lambda: self._answered >= number, timeout_s)
        return answered and self.problem is None

    def stop(self) -> None:
        """Make the thread end after the attempt in progress; does not wait for it."""
        with self._changed:
            self._stopping = True
            self._changed.notify_all()


def short(error: Exception) -> str:
    """An error in one line; a long one, which often wraps others, is cut to its beginning and the cause at its end."""
    text = without_users(one_line(error))
    return text if len(text) <= 300 else f"{text[:100]} ... {text[-195:]}"
