"""What logging costs of a run's time: `python reports/logging_cost/measure.py [steps] [overrides ...]`, in an empty folder.

Runs the training job of `make train` and takes the times of the logger itself: what its calls took of the run (wall clock), and
what delivery took of a background thread (processor time, which the run may have had to wait for).
"""

from __future__ import annotations

import logging
import sys
import time
from pathlib import Path

from hydra import compose, initialize_config_dir
from hydra.core.hydra_config import HydraConfig
from omegaconf import open_dict
from rich.console import Console

from oar_lightning import __main__ as command
from oar_lightning.common.paths import conf_dir
from oar_lightning.tracking.mlflow_logger import DurableMLFlowLogger
from oar_lightning.wiring import run

LIMIT = 0.03


def main(steps: int, *overrides: str) -> None:
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    made: list[DurableMLFlowLogger] = []
    original = run.build_logger

    def remembered(*args: object, **options: object) -> DurableMLFlowLogger | None:
        logger = original(*args, **options)  # type: ignore[arg-type]
        if logger is not None:
            made.append(logger)
        return logger

    run.build_logger = remembered
    with initialize_config_dir(str(conf_dir()), version_base="1.3"):
        cfg = compose("config", ["+experiment=oar_g", f"trainer.max_steps={steps}", *overrides], return_hydra_config=True)
    folder = Path.cwd() / "run"
    cfg.hydra.runtime.cwd, cfg.hydra.runtime.output_dir = str(Path.cwd()), str(folder)
    HydraConfig.instance().set_config(cfg)
    with open_dict(cfg):
        del cfg["hydra"]
    started = time.perf_counter()
    work = command.prepare(cfg)
    prepared, cpu = time.perf_counter(), time.process_time()
    work()
    run_s, cpu_s = time.perf_counter() - prepared, time.process_time() - cpu
    (logger,) = made
    console = Console()
    console.print(
        f"{steps} steps: run {run_s:.1f} s (after {prepared - started:.1f} s of preparation, making the store included)"
    )
    calls, delivery = logger.seconds / run_s, logger.delivery_cpu_s / cpu_s
    console.print(f"calls: {logger.seconds:.2f} s, {calls:.2%} of the run's time")
    console.print(f"delivery: {logger.delivery_cpu_s:.2f} s of {cpu_s:.1f} s of processor time, {delivery:.2%}")
    share = calls + delivery
    console.print(f"together {share:.2%}; the limit is {LIMIT:.0%}")
    sys.exit(share > LIMIT)


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 20, *sys.argv[2:])
