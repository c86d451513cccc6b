"""The folder of an evaluation: its results, the config that made them, and the id of their MLflow run."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from oar_lightning.common.config_check import ConfigError
from oar_lightning.common.credentials import hidden
from oar_lightning.common.mappings import flatten
from oar_lightning.common.outputs import replace_file
from oar_lightning.evaluation.result import ResultsFile

DECIDING = ("policy", "data", "rollout", "engine", "answer", "reward", "evaluation", "trainer.precision")
"""Sections and keys that results depend on."""

WITHOUT_INFLUENCE = (
    "data.name",
    "data.train",
    "data.decontaminate",
    "data.max_prompt_tokens",
    "rollout.max_batch",
    "rollout.token_budget",
    "engine.enforce_eager",
    "engine.gpu_memory_utilization",
    "engine.sleep",
    "evaluation.every_n_steps",
    "evaluation.heatmap",
    "evaluation.batch_problems",
    "policy.gradient_checkpointing",
    "reward.terms.accuracy.verifier.workers",
    "reward.terms.accuracy.verifier.cache",
)
"""Beginnings of keys in these sections that results do not depend on."""


class EvaluationFolder:
    """``mlflow_run_id``, and under ``results`` the files ``<evaluation set>.jsonl``, ``config.json`` and ``policy.sha256``."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._config = path / "results" / "config.json"
        self._policy = path / "results" / "policy.sha256"
        self._run_id = path / "mlflow_run_id"

    def results(self, eval_set: str) -> ResultsFile:
        """The file of an evaluation set's results."""
        return ResultsFile(self.path / "results" / f"{eval_set}.jsonl")

    @property
    def run_id(self) -> str | None:
        return self._run_id.read_text(encoding="utf-8").strip() if self._run_id.is_file() else None

    @property
    def begun(self) -> bool:
        """Whether an evaluation has begun there."""
        return self._config.exists()

    def refuse_used(self) -> None:
        """Raises ConfigError: where there are results already, which a new evaluation would take for its own."""
        if any(self._config.parent.glob("*")):
            raise ConfigError(
                f"hydra.run.dir={self.path} holds the results of an evaluation; resume=true goes on with it, else name another "
                "folder, or remove this one"
            )

    def start(self, config: Mapping[str, Any], policy: str, run_id: str | None) -> None:
        """Store the config, the policy's fingerprint and the run's id, which a resumed evaluation needs."""
        self._config.parent.mkdir(parents=True, exist_ok=True)
        if not self._config.exists():  # which says that the rest is there
            replace_file(self._policy, f"{policy}\n")
            replace_file(self._config, json.dumps(config, indent=1, ensure_ascii=False))
        if run_id is not None:
            self._run_id.write_text(f"{run_id}\n", encoding="utf-8")

    def check_begun(self, config: Mapping[str, Any]) -> None:
        """The same as `check` for an evaluation that Slurm, torchrun or a sweep starts again, if it has begun."""
        if self.begun:
            self.check(config)

    def check_policy(self, fingerprint: str) -> None:
        """Compare a policy with the one that made the results; evaluations of older versions have kept none.

        Raises:
            ConfigError: where it is another one, as where another training has exported to the same folder since.
        """
        if self._policy.is_file() and self._policy.read_text(encoding="utf-8").strip() != fingerprint:
            raise ConfigError(
                f"resume=true: the results in {self.path} are of a policy with other weights than policy.name has now; "
                "start without resume"
            )

    def check(self, config: Mapping[str, Any]) -> None:
        """Compare a config with the one that made the results.

        Raises:
            ConfigError: names every key that differs.
        """
        try:
            stored = json.loads(self._config.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise ConfigError(f"resume=true: {self._config} cannot be read ({error}); start without resume") from error
        # through JSON, which knows no tuples
        before, now = deciding(hidden(stored)), deciding(hidden(json.loads(json.dumps(config))))
        differing = [k for k in sorted(before | now) if k not in before or k not in now or before[k] != now[k]]
        if differing:
            shown = [{k: repr(values[k]) if k in values else "nothing" for k in differing} for values in (now, before)]
            listed = ", ".join(f"{k}={shown[0][k]} (there {shown[1][k]})" for k in differing)
            raise ConfigError(
                f"resume=true: the results in {self.path} were made with another config: {listed}; "
                "repeat the command as it was, or start without resume"
            )


def deciding(config: Mapping[str, Any]) -> dict[str, Any]:
    """The flat part of a config that results depend on."""
    flat = flatten(dict(config))
    wanted = {k: v for k, v in flat.items() if any(k == key or k.startswith(f"{key}.") for key in DECIDING)}
    return {k: v for k, v in wanted.items() if not k.startswith(WITHOUT_INFLUENCE)}


def newest_folder(folder: Path) -> EvaluationFolder:
    """The newest evaluation in `folder`, which holds the runs of one name and seed.

    Raises:
        ConfigError: where there is none.
    """
    configs = sorted(folder.glob("*/results/config.json"), key=lambda p: p.stat().st_mtime)
    if not configs:
        raise ConfigError(f"resume=true: no evaluation under {folder}; start without resume, or set the name and seed of one")
    return EvaluationFolder(configs[-1].parent.parent)
