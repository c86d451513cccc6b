"""How long a policy of Qwen2.5-1.5B's shape (random weights, bfloat16) takes on a GPU to sample 64 tokens of 64 completions.

    python reports/gpu/decode.py

The first call, which is not timed, loads what is loaded late; recording decoding steps belongs to each call.
"""

from __future__ import annotations

import sys
import time

import torch

from oar_lightning.benchmark import RandomShape, RandomWorkload

SHAPE = RandomShape(1536, 8960, 28, 12, 2, 151936, prompt=256, completion=64, prompts=8, group_size=8, dtype="bfloat16")


def main() -> None:
    work = RandomWorkload(SHAPE, torch.device("cuda"))
    work.sample(0)
    torch.cuda.synchronize()
    started = time.perf_counter()
    work.sample(1)
    torch.cuda.synchronize()
    sys.stdout.write(f"{time.perf_counter() - started:.2f} s\n")


if __name__ == "__main__":
    main()
