"""Errors that vLLM raises in the middle of its own code, in the words of the settings that cause them."""

from __future__ import annotations

import re

from oar_lightning.common.messages import first_line
from oar_lightning.policy.out_of_memory import OutOfMemory, out_of_memory

WITHOUT = "engine=auto samples without vLLM"

TOO_MANY_AT_ONCE = re.compile(r"max_num_batched_tokens \((\d+)\) must be greater than or equal to max_num_seqs")
NOT_FREE = ("is less than desired",)
NO_ROOM = ("No available memory for the cache", "KV cache is needed", "is less than requested memory for kv")
"""Texts of vLLM 0.19 to 0.33 on a GPU and on a CPU."""


def start_error(error: Exception, memory: float, max_batch: int | None) -> Exception:
    """What to raise where a `vllm.LLM` could not be made with this `gpu_memory_utilization` and `rollout.max_batch`."""
    text = str(error)
    if found := TOO_MANY_AT_ONCE.search(text):
        return ValueError(
            f"rollout.max_batch={max_batch} is more than vLLM samples at once here; set rollout.max_batch to at most "
            f"{found[1]} (null lets vLLM choose)"
        )
    told = f"engine.gpu_memory_utilization={memory} of the memory"
    if any(part in text for part in NOT_FREE):
        return ValueError(
            f"{told} is not free: lower engine.gpu_memory_utilization or end what else holds memory (vLLM says: {_told(error)})"
        )
    if any(part in text for part in NO_ROOM):
        return ValueError(
            f"{told} leaves too little for vLLM's cache beside its weights (on a CPU also beside the policy): set "
            "engine.max_model_len to the longest prompt and completion, or change engine.gpu_memory_utilization (vLLM says: "
            f"{_told(error)})"
        )
    return RuntimeError(f"engine=vllm did not start: {type(error).__name__}: {_told(error)}; {WITHOUT}")


def sampling_error(error: Exception, prompts: int) -> Exception:
    """What to raise where vLLM failed while it sampled completions of so many prompts."""
    what = f"engine=vllm failed while it sampled completions of {prompts} prompts: {type(error).__name__}: {_told(error)}"
    if out_of_memory(error):
        return OutOfMemory(f"{what}; lower rollout.max_batch or engine.gpu_memory_utilization")
    return RuntimeError(f"{what}; {WITHOUT}")


def _told(error: Exception) -> str:
    """What the error is about; in one of pydantic's, the check's own text."""
    checked = re.search(r"Value error, (.*)", str(error))
    return checked[1][:200] if checked else first_line(error)
