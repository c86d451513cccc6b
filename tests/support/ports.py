"""Ports for the servers of tests."""

from __future__ import annotations

import random
import socket

# Below those that Linux (from 32768) and macOS (from 49152) hand to outgoing connections: a port that is free now
# would otherwise be taken by another test's client before its server is up, or while the server is away.
PORTS = range(20_000, 32_000)


def free_port() -> int:
    """A port of this machine that nobody listens on.

    Raises:
        RuntimeError: none of a hundred was free.
    """
    for port in random.SystemRandom().sample(PORTS, 100):
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    raise RuntimeError(f"a hundred ports of {PORTS} are taken")
