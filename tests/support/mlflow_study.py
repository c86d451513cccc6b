"""Fills MLflow stores with made-up studies whose results are known: what sweeps log, without training."""

from __future__ import annotations

import itertools
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from mlflow import MlflowClient
from mlflow.entities import Metric, Param, RunTag

START = 1_700_000_000_000
"""2023-11-14 22:13:20 UTC, in ms."""

ABOUT = {
    "git_revision": "0123456789abcdef",
    "python": "3.11.7",
    "torch": "2.13.0",
    "lightning": "2.6.6",
    "transformers": "5.23.0",
    "hardware": "a CPU, 1 thread",
}


PARAMETERS = {
    "policy.name": "chain",
    "data.name": "chain",
    "data.evaluation.chain.split": "held_out",
    "trainer.max_steps": 40,
    "update.problems": 2,
    "update.group_size": 8,
    "evaluation.problems": 128,
    "evaluation.samples": 4,
}


class Store:
    """The SQLite store of a folder, filled run by run; each run starts a minute after the one before."""

    def __init__(self, folder: Path, experiment: str = "oar_lightning") -> None:
        self.uri = f"sqlite:///{folder}/mlflow.db"
        self.client = MlflowClient(self.uri)
        self.experiment = self.client.create_experiment(experiment, artifact_location=str(folder / "mlartifacts"))
        self.minutes = itertools.count()

    def log(
        self,
        name: str,
        tags: Mapping[str, Any],
        metrics: Mapping[str, float | Sequence[tuple[int, float]]] = {},
        params: Mapping[str, Any] = {},
        status: str = "FINISHED",
        seconds: float = 30.0,
    ) -> str:
        """One run; a metric is its final value or its points (step, value), logged a second apart in their order."""
        start = START + 60_000 * next(self.minutes)
        run_id: str = self.client.create_run(self.experiment, start_time=start, run_name=name).info.run_id
        points = []
        for key, values in metrics.items():
            listed = [(0, values)] if isinstance(values, int | float) else values
            points += [Metric(key, float(v), start + 1000 * i, step) for i, (step, v) in enumerate(listed)]
        logged = [RunTag(key, str(value)) for key, value in (ABOUT | dict(tags)).items()]
        self.client.log_batch(run_id, metrics=points, tags=logged, params=[Param(k, str(v)) for k, v in params.items()])
        if status != "RUNNING":
            self.client.set_terminated(run_id, status, end_time=start + round(1000 * seconds))
        return run_id

    def sweep(self, name: str, overrides: str, **tags: Any) -> str:
        """The parent of a sweep's trials."""
        about = {"kind": "sweep", "sweep": name, "experiment": "oar_g", "overrides": overrides}
        return self.log(name, about | tags)

    def trial(self, parent: str, sweep: str, number: int, swept: Mapping[str, Any], result: float | None, **given: Any) -> str:
        """A trial with its learning curve, entropy and credit; `tags`, `metrics`, `status` and `seconds` may be given."""
        about = {"mlflow.parentRunId": parent, "sweep": sweep, "trial": number, "trial_state": "complete"}
        about |= {"swept": json.dumps(swept), "seed": swept.get("seed", 0), "experiment": "oar_g"}
        metrics = given.pop("metrics", {} if result is None else curves(result, swept.get("gate.tau", 0.4), number))
        tags = about | given.pop("tags", {})
        return self.log(f"{sweep}-{number}", tags, metrics, PARAMETERS, **given)


def curves(result: float, tau: float = 0.4, number: int = 0, steps: int = 40) -> dict[str, Any]:
    """What a run logs that starts at 0.4 and ends at `result`; its entropy falls the faster the lower tau is."""
    shares = [step / steps for step in range(1, steps + 1)]
    wiggle = [0.01 * (-1) ** (i + number) for i in range(steps)]
    entropy = [0.3 * (1 - share * max(0.0, 0.9 - 1.5 * tau)) + w for share, w in zip(shares, wiggle, strict=True)]
    return {
        "objective": result,
        "time/total_cpu_s": 20.0,
        "credit/forward_equivalents": [(i + 1, 2.5) for i in range(steps)],
        "grad_norm": [(i + 1, 0.5 + w) for i, w in enumerate(wiggle)],
        "completions/mean_length": [(i + 1, 30.0) for i in range(steps)],
        "objective_low": result - 0.03,
        "objective_high": result + 0.03,
        "eval/chain/avg_at_4": [(0, 0.4), (steps // 2, 0.4 + 0.6 * (result - 0.4)), (steps, result)],
        "entropy": [(i + 1, e) for i, e in enumerate(entropy)],
        "credit/ess_ratio": [(i + 1, 0.7 + 0.2 * tau + w) for i, w in enumerate(wiggle)],
        "credit/top10_mass": [(i + 1, 0.3 - 0.1 * tau + w) for i, w in enumerate(wiggle)],
    }
