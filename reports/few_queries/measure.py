"""Attention of few queries a head on a CPU: torch's kernel against two products, for both ways of setting the threads.

    python reports/few_queries/measure.py [--threads 2]

writes README.md beside this file (its text outside the markers is kept).
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

os.environ.setdefault("GOMP_SPINCOUNT", "20000")  # as `python -m oar_lightning` sets it

import torch
from torch.nn.functional import scaled_dot_product_attention

from oar_lightning.common.markdown import fill, markdown
from oar_lightning.common.randomness import generator
from oar_lightning.policy.attention import attend_by_products

README = Path(__file__).with_name("README.md")
SHAPES = {
    "`tiny`, 256 rows": (256, 2, 4, 60, 24),
    "`tiny`, 16 rows": (16, 2, 4, 60, 24),
    "`wide`, 32 rows": (32, 4, 8, 300, 64),
    "Qwen2.5-0.5B's heads, 64 rows": (64, 2, 14, 300, 64),
    "Qwen2.5-0.5B's heads, 1 row": (1, 2, 14, 300, 64),
}
"""Name -> rows, heads of keys, heads of queries, keys, size of a head."""
QUERIES = (1, 4, 8)
LAYERS, ROUNDS = 4, 25
WAYS = ("kernel", "products", "products, keys' columns last")


def attentions(shape: tuple[int, int, int, int, int], queries: int) -> dict[str, Callable[[], object]]:
    """The ways to attend of all layers, which have keys of their own, as a pass has."""
    rows, groups, heads, width, size = shape
    made = generator("few_queries")
    room = width * 5 // 4  # storage grows ahead of the texts
    query = torch.randn(rows, queries, heads, size, generator=made)
    mask = torch.zeros(rows, 1, queries, width)
    mask[..., :3] = -torch.inf
    stored = [torch.randn(2, rows, groups, room, size, generator=made)[..., :width, :] for _ in range(LAYERS)]
    turned = [
        (keys.transpose(2, 3).contiguous().transpose(2, 3) if width == room else columns_last(keys, room), values)
        for keys, values in stored
    ]

    def kernel() -> None:
        for keys, values in stored:
            if queries == 1:
                packed = query.view(rows, groups, -1, size)
                scaled_dot_product_attention(packed, keys, values, mask)
            else:
                scaled_dot_product_attention(query.transpose(1, 2), keys, values, mask, enable_gqa=True)

    def products() -> None:
        for keys, values in stored:
            attend_by_products(query, keys, values, mask)

    def turned_products() -> None:
        for keys, values in turned:
            attend_by_products(query, keys, values, mask)

    return dict(zip(WAYS, (kernel, products, turned_products), strict=True))


def columns_last(keys: torch.Tensor, room: int) -> torch.Tensor:
    """The same keys at the front of storage [n g d C]."""
    storage = keys.new_zeros(*keys.shape[:2], keys.shape[3], room).transpose(2, 3)
    storage[:, :, : keys.shape[2]] = keys
    return storage[:, :, : keys.shape[2]]


@torch.no_grad()
def microseconds() -> dict[str, dict[str, float]]:
    """Case -> way -> median time of one layer's attention; the ways take turns."""
    found = {}
    for name, shape in SHAPES.items():
        for queries in QUERIES:
            ways = attentions(shape, queries)
            times: dict[str, list[float]] = {way: [] for way in ways}
            for number in range(ROUNDS + 3):
                for way, run in ways.items():
                    started = time.perf_counter()
                    run()
                    if number >= 3:
                        times[way].append(time.perf_counter() - started)
            found[f"{name}|{queries}"] = {way: 1e6 * median(values) / LAYERS for way, values in times.items()}
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description="Attention of few queries on a CPU: torch's kernel against two products.")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--child", choices=("environment", "call"), help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        if args.child == "call":
            torch.set_num_threads(args.threads)
        print(json.dumps(microseconds()))  # noqa: T201
        return
    variables = os.environ | {"OMP_NUM_THREADS": str(args.threads)}
    command = [sys.executable, __file__, "--threads", str(args.threads), "--child"]
    by = {
        how: json.loads(subprocess.run([*command, how], env=variables, check=True, capture_output=True, text=True).stdout)
        for how in ("environment", "call")
    }
    rows = [["shape", "queries", "kernel after `torch.set_num_threads`, µs", *(f"{way}, µs" for way in WAYS)]]
    for case, ways in by["environment"].items():
        name, queries = case.split("|")
        rows.append([name, queries, f"{by['call'][case]['kernel']:.0f}", *(f"{ways[way]:.0f}" for way in WAYS)])
    text = f"torch {torch.__version__}, {args.threads} threads; median of {ROUNDS} passes over {LAYERS} layers, time of one."
    fill(README, f"{text}\n\n{markdown(rows)}")


if __name__ == "__main__":
    main()
