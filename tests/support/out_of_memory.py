"""What a pass that does not fit raises, and what is logged of a budget that gives way."""

from __future__ import annotations

import pytest
import torch


def out(tokens: int) -> torch.OutOfMemoryError:
    return torch.OutOfMemoryError(f"CUDA out of memory. Tried to run {tokens} tokens.")


def lowered(caplog: pytest.LogCaptureFixture, key: str) -> list[str]:
    messages = [record.getMessage() for record in caplog.records if record.name == "oar_lightning.policy.token_budget"]
    return [message for message in messages if message.startswith(f"{key}=auto:")]
