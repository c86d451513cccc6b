"""What DeepSpeed's ranks hold of weights, gradients and optimizer states, against the plan; on two processes of the CPU.

for stage in 1 2 3; do torchrun --nproc-per-node=2 reports/memory_plan/zero.py $stage; done
"""

from __future__ import annotations

import ctypes
import gc
import os
import re
import sys
from pathlib import Path

os.environ.setdefault("DS_ACCELERATOR", "cpu")

import deepspeed
import deepspeed.ops
import torch

from oar_lightning.planning.memory import Sharding, weight_items
from oar_lightning.planning.policy import PolicySize

LAYERS, WIDTH = 16, 1536
PARAMETERS = LAYERS * WIDTH**2


def resident() -> int:
    """Bytes of this process that are no file's."""
    gc.collect()
    ctypes.CDLL("libc.so.6").malloc_trim(0)
    found = re.search(r"RssAnon:\s+(\d+)", Path("/proc/self/status").read_text())
    assert found is not None
    return int(found[1]) * 1024


def held(stage: int, layers: int, width: int) -> list[int]:
    """Bytes after the engine is made, after the second step's backward pass, and after that step."""
    before = resident()
    model = torch.nn.Sequential(*(torch.nn.Linear(width, width, bias=False) for _ in range(layers))).to(torch.bfloat16)
    small = {"reduce_bucket_size": 2**16, "allgather_bucket_size": 2**16, "overlap_comm": False}  # buckets are planned apart
    nothing = dict.fromkeys(("prefetch_bucket_size", "param_persistence_threshold", "max_live_parameters"), 0)
    engine, *_ = deepspeed.initialize(
        model=model,
        optimizer=torch.optim.AdamW(model.parameters(), lr=1e-3),
        config={
            "train_micro_batch_size_per_gpu": 1,
            "bf16": {"enabled": True},
            "zero_force_ds_cpu_optimizer": False,
            "zero_optimization": {"stage": stage, **small, **{f"stage3_{name}": x for name, x in nothing.items()}},
        },
    )
    found = [resident() - before]
    for _ in range(2):
        engine.backward(engine(torch.randn(2, width, dtype=torch.bfloat16)).float().square().mean())
        found[1:] = [resident() - before]
        engine.step()
        found.append(resident() - before)
    return found


def main() -> None:
    stage = int(sys.argv[1])
    torch.set_num_threads(1)
    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False  # else it would be compiled
    deepspeed.init_distributed("gloo")
    held(stage, 2, 64)  # loads what is loaded late
    start, gradients, after = (bytes_held / PARAMETERS for bytes_held in held(stage, LAYERS, WIDTH))
    if torch.distributed.get_rank() == 0:
        size = PolicySize(PARAMETERS, 0, 2 * PARAMETERS, 0, WIDTH**2, WIDTH)
        plan = {item.name: item.bytes / PARAMETERS for item in weight_items(size, Sharding(2, stage), masters=True)}
        planned = plan["weights"] + plan["gradients"] + plan["optimizer states"]
        sys.stdout.write(
            f"ZeRO-{stage}, bytes a parameter: {planned:.2f} planned, {gradients:.2f} after the backward pass, "
            f"{after:.2f} after the step ({start:.2f} when the engine is made)\n"
        )


if __name__ == "__main__":
    main()
