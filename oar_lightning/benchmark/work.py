"""The work of products and attention, and what a machine reaches of it a second."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.profiler import ProfilerActivity, profile
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

from oar_lightning.policy.products import multiply

_CPU_ATTENTION = "_scaled_dot_product_flash_attention_for_cpu"
_CPU_PRODUCT = "_linear_pointwise"
_FORMULAS = {operation.__name__: formula for operation, formula in flop_registry.items()}
"""Name of an operation -> floating-point operations of its arguments."""

CORE_BYTES = 2**20
"""What a core's own cache holds: moving it counts as free."""
SHARED_BYTES = 2**25
"""What the cache that cores share holds."""


class Rates(NamedTuple):
    """What a machine reaches a second: `flops` of a matrix product, bytes read from the cache that cores share (`shared`) and
    from `memory`. A GPU has one rate for both."""

    flops: float
    shared: float
    memory: float


class Work(NamedTuple):
    """Of the matrix products and attention of a phase: floating-point operations, and seconds at a machine's `Rates`, for each
    operation those of the slower of work and memory."""

    flops: float = 0.0
    seconds: float = 0.0


class FlopCount(TorchDispatchMode):
    """Sums the floating-point operations of matrix products and attention. Torch's own counter refuses `autograd.grad` and does
    not know the CPU's attention."""

    def __init__(self) -> None:
        super().__init__()
        self.total = 0.0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        flops = _flops(func, args, kwargs or {}, out)
        if flops is not None:
            self.add(flops, args, out)
        return out

    def add(self, flops: float, args: Sequence[Any], out: Any) -> None:
        """Count an operation with these arguments and this result."""
        self.total += flops


class WorkCount(FlopCount):
    """Sums `Work`, too.

    A tensor is as far away as the bytes that counted operations have touched since it was touched last. Up to `CORE_BYTES` it
    moves for nothing, up to `SHARED_BYTES` at the shared cache's rate, beyond (and the first time) at memory's; a result,
    which is written, by its size alone. Operations that are not counted touch nothing, so that this is a lower bound.
    """

    def __init__(self, rates: Rates) -> None:
        super().__init__()
        self._rates = rates
        self._seconds = 0.0
        self._touched = 0
        self._last: dict[int, int] = {}

    @property
    def work(self) -> Work:
        return Work(self.total, self._seconds)

    def add(self, flops: float, args: Sequence[Any], out: Any) -> None:
        super().add(flops, args, out)
        results = out if isinstance(out, tuple | list) else (out,)
        moving = sum(self._moving(x, True) for x in args if isinstance(x, torch.Tensor))
        moving += sum(self._moving(x, False) for x in results if isinstance(x, torch.Tensor))
        self._seconds += max(flops / self._rates.flops, moving)

    def _moving(self, tensor: Tensor, is_read: bool) -> float:
        """Seconds to move a tensor, which is touched by it."""
        size = tensor.numel() * tensor.element_size()
        place = id(tensor) if tensor.is_mkldnn else tensor.data_ptr()  # packed weights have no address that torch knows
        self._touched += size
        distance = self._touched - self._last.get(place, -SHARED_BYTES) if is_read else size
        self._last[place] = self._touched
        if distance <= CORE_BYTES:
            return 0.0
        return size / (self._rates.shared if distance <= SHARED_BYTES else self._rates.memory)


def _without_place(name: str) -> str:
    """An operation that writes its result in place (`baddbmm_`) does the same work as the other."""
    return name.removesuffix("_")


def _flops(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any], out: Any) -> float | None:
    """Floating-point operations of a matrix product or attention; None of others."""
    if func._overloadpacket.__name__ == _CPU_PRODUCT:
        return 2.0 * args[0].numel() * out.shape[-1]
    name = _without_place(func._overloadpacket.__name__)
    if name.startswith("_scaled_dot_product"):
        return _attention_flops(name, args)
    formula = _FORMULAS.get(name)
    return None if formula is None else formula(*args, **kwargs, out_val=out)


def _attention_flops(name: str, args: Sequence[Any]) -> float:
    """Of softmax(q k') v, whatever kernel computes it; torch's own formulas refuse heads that share keys."""
    forward = "_backward" not in name
    first = 0 if forward else 1  # the output's gradient comes before them
    query, keys, values = (x.shape for x in args[first : first + 3])
    products = 2.0 * query[0] * query[1] * query[2] * keys[2]
    # backward: the scores again, and the gradients of query, keys, values and weights
    return products * (query[3] + values[3]) if forward else products * (3 * query[3] + 2 * values[3])


def product_seconds(run: Callable[[], None]) -> float:
    """Seconds that the matrix products and attention of `run` take on the CPU, by torch's profiler."""
    counted = {*_FORMULAS, _CPU_PRODUCT, _CPU_ATTENTION, f"{_CPU_ATTENTION}_backward"}
    with profile(activities=[ProfilerActivity.CPU]) as profiler:
        run()
    assert profiler.profiler is not None
    # not `key_averages`, which takes several times as long as `run`
    events = profiler.profiler.kineto_results.events()
    return sum(e.duration_ns() for e in events if _without_place(e.name().rpartition("::")[2]) in counted) / 1e9


def measure_rates(device: torch.device, dtype: torch.dtype) -> Rates:
    if device.type != "cpu":
        return Rates(matrix_rate(device, dtype, 8192), *[memory_rate(device, 2**30)] * 2)
    return Rates(matrix_rate(device, dtype), memory_rate(device, 2**24), memory_rate(device, 2**28))


def memory_rate(device: torch.device, size: int, repeats: int = 15) -> float:
    """Bytes a second of a sum over a tensor of `size` bytes: the best of several."""
    x = torch.ones(size // 4, device=device)
    return x.numel() * 4 / _best_seconds(lambda: x.sum(), device, repeats)


def matrix_rate(device: torch.device, dtype: torch.dtype, size: int = 1536, repeats: int = 15) -> float:
    """FLOP/s of a square matrix product: the best of several, because the floor must not depend on other load, and on a CPU
    that of the faster library."""
    a, b = (torch.randn(size, size, device=device).to(dtype) for _ in range(2))
    return 2 * size**3 / min(_best_seconds(run, device, repeats) for run in (lambda: a @ b, lambda: multiply(a, b)))


def _best_seconds(run: Callable[[], object], device: torch.device, repeats: int) -> float:
    """The shortest of several runs, after one that does not count."""
    run()
    best = float("inf")
    for _ in range(repeats):
        synchronise(device)
        started = time.perf_counter()
        run()
        synchronise(device)
        best = min(best, time.perf_counter() - started)
    return best


def synchronise(device: torch.device) -> None:
    """Wait for a GPU's work to end."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
