"""What counts as running out of memory, and the advice that is given then."""

from __future__ import annotations

import pytest
import torch

from oar_lightning.policy.out_of_memory import OutOfMemory, advice, out_of_memory


def out() -> torch.OutOfMemoryError:
    return torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")


def cpu_error() -> RuntimeError:
    """What torch says when the CPU has no memory left."""
    with pytest.raises(RuntimeError) as caught:
        torch.empty(2**60, dtype=torch.uint8)
    return caught.value


@pytest.mark.parametrize(
    "error",
    [
        out(),
        MemoryError(),
        cpu_error(),
        RuntimeError("CUBLAS_STATUS_ALLOC_FAILED ..."),
        RuntimeError("CUDA error: out of memory"),
    ],
)
def test_running_out_of_memory_is_told_from_other_errors(error: Exception) -> None:
    assert out_of_memory(error)
    assert not out_of_memory(type(error)("shapes differ") if type(error) is RuntimeError else ValueError(str(error)))


def test_advice_names_the_keys_where_memory_ran_out_elsewhere() -> None:
    for key in ("update.token_budget", "update.microbatches", "rollout.token_budget", "scorer.token_budget", "auto"):
        assert key in advice(out())
    assert (
        advice(out(), "lower this")
        == "OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. - out of memory: lower this"
    )
    assert advice(ValueError("no")) == "ValueError: no"
    assert advice(OutOfMemory("known")) == "OutOfMemory: known"
