"""oneDNN's products against torch's on a CPU: single ones, with weights as they are and in its order; with gradients; sampling.

    OMP_NUM_THREADS=2 python reports/packed_weights/measure.py

writes README.md beside this file (its text outside the markers is kept).
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from statistics import median

os.environ.setdefault("GOMP_SPINCOUNT", "20000")  # as `python -m oar_lightning` sets it

import torch
from torch import Tensor

from oar_lightning.benchmark import RandomShape, RandomWorkload
from oar_lightning.common.allocator import keep_freed_memory
from oar_lightning.common.markdown import fill, markdown
from oar_lightning.common.randomness import generator
from oar_lightning.policy import products
from oar_lightning.policy.products import PackedWeights, Weights, fixed_weights

README = Path(__file__).with_name("README.md")
MATRICES = {
    "`tiny`, both halves of the MLP": (512, 96),
    "`graph`, both halves of the MLP": (704, 128),
    "`wide`, both halves of the MLP": (2048, 256),
    "`wide`, head": (32000, 256),
    "SmolLM-135M, both halves of the MLP": (3072, 576),
}
"""Name -> outputs and inputs."""
ROWS = (1, 16, 64, 256, 2048)
GRADIENT_ROWS = (256, 2048, 2100)
"""The last is not one of the numbers that oneDNN is called with."""
SECONDS = 0.25
"""Of one cell, for its ways together."""
SAMPLING = {
    "`authors`": RandomShape(256, 1024, 4, 8, 2, 4096, prompt=24, completion=136, prompts=2, group_size=8, tied=True),
    "`wide`": RandomShape(256, 1024, 4, 8, 2, 32000, prompt=128, completion=256, prompts=4, group_size=8, tied=True),
    "SmolLM-135M's shape": RandomShape(
        576, 1536, 30, 9, 3, 49152, prompt=64, completion=32, prompts=2, group_size=8, tied=True
    ),
}
ROUNDS = 5
NEVER = 2**62
"""More numbers than any matrix has."""


def seconds(run: Callable[[], object]) -> float:
    started = time.perf_counter()
    run()
    return time.perf_counter() - started


@contextmanager
def least(numbers: int) -> Iterator[None]:
    """Inside the block matrices with fewer numbers are not packed; with 0 oneDNN makes every product."""
    former = products.LEAST, products.LEAST_WORK
    products.LEAST, products.LEAST_WORK = numbers, numbers and products.LEAST_WORK
    try:
        yield
    finally:
        products.LEAST, products.LEAST_WORK = former


def pack(matrix: Tensor) -> Tensor:
    return PackedWeights(matrix).packed


def multiply(matrices: Sequence[Weights], x: Tensor, onednn: bool) -> None:
    with torch.backends.mkldnn.flags(enabled=onednn):
        for weights in matrices:
            weights(x)


def differentiate(weights: Weights, x: Tensor, upstream: Tensor, onednn: bool) -> None:
    with torch.backends.mkldnn.flags(enabled=onednn):
        torch.autograd.grad(weights(x), (x, weights.matrix), upstream)


def in_turns(ways: Mapping[str, Callable[[], None]]) -> dict[str, list[float]]:
    """Seconds of each way, round by round, after one that does not count."""
    found: dict[str, list[float]] = {way: [] for way in ways}
    for run in ways.values():
        run()
    ends = time.perf_counter() + SECONDS
    while time.perf_counter() < ends or len(next(iter(found.values()))) < 5:
        for way, run in ways.items():
            found[way].append(seconds(run))
    return found


@torch.no_grad()
def product_table() -> str:
    lines = [["matrix", "packed", "packing, µs", *(f"{rows} rows: torch, µs (as it is, packed of it)" for rows in ROWS)]]
    for name, (outputs, inputs) in MATRICES.items():
        made = generator("packed_weights")
        count = max(2, 2**22 // (outputs * inputs))  # of matrices in turn, as layers come
        plain = [Weights(torch.randn(outputs, inputs, generator=made)) for _ in range(count)]
        with least(0):
            times = [seconds(partial(pack, weights.matrix)) for weights in plain for _ in range(3)]
            packed = [fixed_weights(weights.matrix) for weights in plain]
        cells = []
        for rows in ROWS:
            x = torch.randn(rows, inputs, generator=made)
            with least(0):
                ways = {"torch": (plain, False), "as it is": (plain, True), "packed": (packed, True)}
                taken = in_turns({way: partial(multiply, many, x, onednn) for way, (many, onednn) in ways.items()})
            ratios = [median(b / a for a, b in zip(taken["torch"], taken[way], strict=True)) for way in ("as it is", "packed")]
            cells.append(f"{1e6 * median(taken['torch']) / count:.0f} ({', '.join(f'{ratio:.2f}' for ratio in ratios)})")
        is_packed = "yes" if isinstance(fixed_weights(plain[0].matrix), PackedWeights) else "no"
        lines.append([name, is_packed, f"{1e6 * median(times):.0f}", *cells])
    return markdown(lines)


def gradient_table() -> str:
    lines = [["matrix", *(f"{rows} rows: torch, µs (oneDNN of it)" for rows in GRADIENT_ROWS)]]
    for name, (outputs, inputs) in MATRICES.items():
        made = generator("packed_weights")
        weights = Weights(torch.randn(outputs, inputs, generator=made).requires_grad_())
        cells = []
        for rows in GRADIENT_ROWS:
            x = torch.randn(rows, inputs, generator=made).requires_grad_()
            upstream = torch.randn(rows, outputs, generator=made)
            ways = {way: partial(differentiate, weights, x, upstream, way == "oneDNN") for way in ("torch", "oneDNN")}
            taken = in_turns(ways)
            ratio = median(b / a for a, b in zip(taken["torch"], taken["oneDNN"], strict=True))
            cells.append(f"{1e6 * median(taken['torch']):.0f} ({ratio:.2f})")
        lines.append([name, *cells])
    return markdown(lines)


def sampling_table() -> str:
    lines = [["policy", "completions", "torch's products, s", "packed, s", "packed over torch's, median (range)"]]
    for name, shape in SAMPLING.items():
        workload = RandomWorkload(shape, torch.device("cpu"))
        found: dict[int, list[float]] = {NEVER: [], products.LEAST: []}
        for number in range(ROUNDS + 1):
            for numbers, times in found.items():
                with least(numbers):
                    taken = seconds(partial(workload.sample, number))
                if number:
                    times.append(taken)
        plain, packed = found.values()
        ratios = [b / a for a, b in zip(plain, packed, strict=True)]
        completions = f"{shape.prompts * shape.group_size} of {shape.completion} tokens"
        ratio = f"{median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})"
        lines.append([name, completions, f"{median(plain):.2f}", f"{median(packed):.2f}", ratio])
    return markdown(lines)


def main() -> None:
    keep_freed_memory()
    facts = f"torch {torch.__version__}, {torch.get_num_threads()} threads, float32."
    parts = {"One product": product_table, "With its gradients": gradient_table, "Sampling": sampling_table}
    fill(README, "\n\n".join([facts, *(f"## {title}\n{table()}" for title, table in parts.items())]))


if __name__ == "__main__":
    main()
