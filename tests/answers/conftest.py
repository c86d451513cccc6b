"""Verifiers that the tests of a file share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from support.verifier_workers import LIMIT_S

from oar_lightning.answers.verifier import Verifier, VerifierConfig


@pytest.fixture(scope="module")
def verifier() -> Iterator[Verifier]:
    verifier = Verifier(VerifierConfig(timeout_s=LIMIT_S, workers=2))
    yield verifier
    verifier.close()


@pytest.fixture(scope="module")
def patient() -> Iterator[Verifier]:
    """One whose verdicts a busy machine does not make timeouts."""
    verifier = Verifier(VerifierConfig(timeout_s=30.0, workers=2))
    yield verifier
    verifier.close()
