"""Counterfactuals of one completion share a prefix: is attention faster if its keys are not copied for each of them?

`python reports/packed_attention/measure.py` prints the table of README.md.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

# completions, counterfactuals of each, prefix, suffix, query heads, key heads, head size
SHAPES = {
    "tiny": (6, 8, 80, 25, 4, 2, 24),
    "authors": (10, 8, 80, 70, 8, 2, 32),
    "wide": (4, 8, 250, 130, 8, 2, 32),
}
flash = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu


def main() -> None:
    torch.manual_seed(0)
    sys.stdout.write("| shape | copies, heads repeated ms | copies ms | shared prefix ms | shared / copies |\n")
    sys.stdout.write("|---|---|---|---|---|\n")
    for name, (rows, copies, prefix, suffix, heads, groups, size) in SHAPES.items():
        n = rows * copies
        pk, pv = torch.randn(2, rows, groups, prefix, size)
        sk, sv = torch.randn(2, n, groups, suffix, size)
        query = torch.randn(n, suffix, heads, size).transpose(1, 2)
        owner = torch.arange(rows).repeat_interleave(copies)
        mask = torch.ones(suffix, prefix + suffix, dtype=torch.bool).tril(prefix)

        def copied(repeat: bool, owner: Tensor = owner, mask: Tensor = mask) -> Tensor:
            key, value = torch.cat([pk[owner], sk], 2), torch.cat([pv[owner], sv], 2)  # noqa: B023
            if repeat:  # what transformers does unless told otherwise
                key, value = (x.repeat_interleave(heads // groups, 1) for x in (key, value))  # noqa: B023
            return scaled_dot_product_attention(query, key, value, attn_mask=mask, enable_gqa=not repeat)  # noqa: B023

        def shared() -> Tensor:
            """Counterfactuals and grouped heads as more queries of the prefix; both parts joined by their normalisers."""
            folded = query.reshape(rows, copies, groups, -1, suffix, size).transpose(1, 2)  # noqa: B023
            far, far_norm = flash(folded.reshape(rows, groups, -1, size), pk, pv, 0.0, False)  # noqa: B023
            key, value = (x.repeat_interleave(heads // groups, 1) for x in (sk, sv))  # noqa: B023
            near, near_norm = flash(query, key, value, 0.0, True)  # noqa: B023
            far = far.view(rows, groups, copies, -1, suffix, size).transpose(1, 2).reshape(near.shape)  # noqa: B023
            far_norm = far_norm.view(rows, groups, copies, -1, suffix).transpose(1, 2).reshape(near_norm.shape)  # noqa: B023
            return torch.lerp(near, far, (far_norm - near_norm).sigmoid()[..., None])

        torch.testing.assert_close(shared(), copied(False), rtol=1e-4, atol=1e-5)
        repeated, plain, packed = in_turns([partial(copied, True), partial(copied, False), shared])
        numbers = [f"{x * 1e3:.2f}" for x in (repeated, plain, packed)]
        sys.stdout.write(f"| {' | '.join([name, *numbers])} | {packed / plain:.2f} |\n")


def in_turns(runs: list[Callable[[], Tensor]], rounds: int = 40) -> list[float]:
    """Median seconds of each, which take turns."""
    seconds: list[list[float]] = [[] for _ in runs]
    for _ in range(rounds):
        for run, taken in zip(runs, seconds, strict=True):
            started = time.perf_counter()
            run()
            taken.append(time.perf_counter() - started)
    return [statistics.median(taken[2:]) for taken in seconds]


if __name__ == "__main__":
    main()
