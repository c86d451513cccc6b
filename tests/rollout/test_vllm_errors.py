"""vLLM's own texts (0.32 on a CPU; 0.33's sources for a GPU) in the words of our settings."""

from __future__ import annotations

import pytest
import torch

from oar_lightning.policy.out_of_memory import OutOfMemory
from oar_lightning.rollout.vllm_errors import sampling_error, start_error

CASES = {
    "1 validation error for SchedulerConfig\n  Value error, max_num_batched_tokens (4096) must be greater than or equal to "
    "max_num_seqs (100000). [type=value_error, input_value=ArgsKwargs(...)]": (
        "rollout.max_batch=100000 is more than vLLM samples at once here; set rollout.max_batch to at most 4096 (null lets "
        "vLLM choose)"
    ),
    "Available memory on node 0 (15.1/23.54 GiB) on startup is less than desired CPU memory utilization (0.9, 21.19 GiB). On "
    "the CPU backend": "engine.gpu_memory_utilization=0.9 of the memory is not free: lower engine.gpu_memory_utilization",
    "Free memory on device cuda:0 (20.0/79.1 GiB) on startup is less than desired GPU memory utilization (0.9, 71.2 GiB).": (
        "engine.gpu_memory_utilization=0.9 of the memory is not free: lower engine.gpu_memory_utilization"
    ),
    "Available memory on node 0 (15.1/23.54 GiB) on kv cache allocation is less than requested memory for kv (-0.4/0.5 GiB).": (
        "engine.gpu_memory_utilization=0.9 of the memory leaves too little for vLLM's cache beside its weights"
    ),
    "No available memory for the cache blocks. Try increasing `gpu_memory_utilization` when initializing the engine.": (
        "engine.gpu_memory_utilization=0.9 of the memory leaves too little for vLLM's cache beside its weights"
    ),
    "To serve at least one request with the models's max seq len (131072), (7.0 GiB KV cache is needed, which is larger than "
    "the available KV cache memory (2.0 GiB).": "engine.max_model_len to the longest prompt and completion",
}


@pytest.mark.parametrize("told", CASES, ids=lambda text: text[:24])
def test_a_cause_that_a_setting_mends_names_it(told: str) -> None:
    error = start_error(ValueError(told), 0.9, 100_000)
    assert isinstance(error, ValueError)
    assert CASES[told] in str(error)
    assert "\n" not in str(error)


def test_any_other_cause_is_told_with_its_class() -> None:
    for make in (lambda error: start_error(error, 0.3, None), lambda error: sampling_error(error, 4)):
        error = make(KeyError("no such\nlayer"))
        assert isinstance(error, RuntimeError)
        assert "KeyError" in str(error)
        assert "no such" in str(error)
        assert str(error).endswith("engine=auto samples without vLLM")
        assert "AssertionError" in str(make(AssertionError()))


def test_the_text_of_a_check_is_told_not_its_heading() -> None:
    told = "1 validation error for ModelConfig\n  Value error, User-specified max_model_len (9) is greater [type=value_error]"
    assert "ValueError: User-specified max_model_len (9) is greater" in str(start_error(ValueError(told), 0.3, None))


def test_no_memory_while_it_samples_stays_a_memory_error() -> None:
    error = sampling_error(torch.OutOfMemoryError("CUDA out of memory."), 4)
    assert isinstance(error, OutOfMemory)
    assert "lower rollout.max_batch or engine.gpu_memory_utilization" in str(error)
