"""Recognises errors that mean out of memory, and names remedies."""

from __future__ import annotations

import gc

import torch

NO_MEMORY = (
    "can't allocate memory",  # torch's allocator of the CPU
    "not enough memory",  # the same on Windows
    "std::bad_alloc",
    "CUBLAS_STATUS_ALLOC_FAILED",
    "CUDNN_STATUS_ALLOC_FAILED",
    "CUDA error: out of memory",  # where the driver is asked past torch's allocator
)
"""Texts of the `RuntimeError`s that mean out of memory."""

REMEDIES = (
    "lower rollout.max_new_tokens, shard (a deepspeed trainer, more trainer.devices), use trainer.precision=bf16-true, "
    "policy=hf_lora or policy.gradient_checkpointing=true"
)
"""Remedies where not even one row fits."""


class OutOfMemory(MemoryError):
    """Raised for a pass that did not fit and cannot be divided; the message names key, size and remedy."""


def out_of_memory(error: BaseException) -> bool:
    """Whether an allocation failed, on any device."""
    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        return True
    return isinstance(error, RuntimeError) and any(text in str(error) for text in NO_MEMORY)


PASSES = (
    "update.token_budget (and update.microbatches) bounds a pass of the update, rollout.token_budget a batch of generation, "
    "scorer.token_budget one of scoring. Set them to auto, which makes smaller passes where memory runs out (not of the update "
    "with a deepspeed trainer, whose ranks make each pass together), or to smaller numbers; task=plan proposes some"
)
"""What bounds the passes of RL."""


def advice(error: BaseException, bounds: str = PASSES) -> str:
    """An error in words; if memory ran out where nothing repeats the pass, with the keys that bound it."""
    message = f"{type(error).__name__}: {error}"
    if isinstance(error, OutOfMemory) or not out_of_memory(error):
        return message
    return f"{message} - out of memory: {bounds}"


def free_memory() -> None:
    """Free memory that nothing holds any more; errors may have held it in reference cycles."""
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
