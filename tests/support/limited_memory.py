"""Short training runs that may take only so much more memory from their first scoring on, which precedes the first update."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

LIMITED = r"""
    import re
    import resource
    from pathlib import Path

    import torch
    from accelerate.utils import extract_model_from_parallel

    from oar_lightning.credit.scorers import Uniform

    extract_model_from_parallel(torch.nn.Identity())  # what saving a model imports (DeepSpeed) is not what is limited


    class Limited(Uniform):
        # so many MiB more than are held; 0: any. Of the GPU's memory if it trains there, once its rollouts are there: before
        # training the scorer is tried on the CPU

        def __init__(self, mib: int, gpu: bool) -> None:
            super().__init__()
            self.mib, self.gpu = mib, gpu

        def __call__(self, model, rollouts):
            if self.gpu != rollouts.token_ids.is_cuda:
                return super().__call__(model, rollouts)
            if self.mib and self.gpu:
                torch.cuda.empty_cache()
                size = torch.cuda.memory_reserved() + self.mib * 2**20
                torch.cuda.set_per_process_memory_fraction(size / torch.cuda.get_device_properties(0).total_memory)
            elif self.mib:
                size = int(re.search(r"VmSize:\s+(\d+) kB", Path("/proc/self/status").read_text())[1]) * 1024
                resource.setrlimit(resource.RLIMIT_AS, 2 * (size + self.mib * 2**20,))
            self.mib = 0
            return super().__call__(model, rollouts)
"""


def train_limited(folder: Path, mib: int, token_budget: str, *overrides: str) -> subprocess.CompletedProcess[str]:
    """Two steps of one pass each, with this `update.token_budget`; the policy is exported to `policy<mib>`."""
    (folder / "limited.py").write_text(textwrap.dedent(LIMITED))
    path = os.pathsep.join([str(folder), os.environ.get("PYTHONPATH", "")])
    settings = [
        *("+experiment=smoke", "logger=none", "num_threads=1", "trainer.max_steps=2", "evaluation.problems=1"),
        *("update.problems=16", "update.group_size=8", "update.microbatches=1", f"update.token_budget={token_budget}"),
        *("~scorer", f"+scorer={{_target_: limited.Limited, mib: {mib}, gpu: {'trainer=gpu' in overrides}}}"),
        "evaluation.heatmap=false",
        f"export_to=policy{mib}",
    ]
    command = [sys.executable, "-m", "oar_lightning", *settings, *overrides]
    environment = os.environ | {"PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=300)
