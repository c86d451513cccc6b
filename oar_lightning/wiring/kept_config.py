"""The config that a run keeps in its folder, and what of it may be another one when the run is resumed."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError

from oar_lightning.common.config_check import ConfigError, defaults_of
from oar_lightning.common.credentials import hidden
from oar_lightning.common.mappings import differing
from oar_lightning.data.fingerprint import fingerprint
from oar_lightning.training.settings import Settings

log = logging.getLogger(__name__)

CONFIG, PROBLEMS = "config.yaml", "problems.json"
"""Artifacts of a run: its resolved config, and the fingerprints of its problems."""

MAY_CHANGE = MappingProxyType(
    {
        "ckpt_path": "says which run is resumed",
        "ckpt_fallback": "says which run is resumed",
        "resume": "says which run is resumed",
        "resume_changed": "says which run is resumed",
        "name": "a label",
        "output_root": "where files go",
        "export_to": "where files go",
        "logger": "where metrics go",
        "loggers": "where metrics go",
        "checkpoint_every_n_steps": "which states are kept",
        "checkpoints": "which states are kept",
        "callbacks": "look on; one that changes training answers for it",
        "num_threads": "rounding alone",
        "trainer.accelerator": "rounding alone",
        "trainer.devices": "rounding alone (but for loss.reduction=bnpo); a checkpoint that they cannot load is refused",
        "trainer.num_nodes": "rounding alone (but for loss.reduction=bnpo); a checkpoint that they cannot load is refused",
        "trainer.strategy": "rounding alone; a checkpoint that another strategy cannot load is refused by itself",
        "trainer.max_steps": "a run may go on for longer; a decaying schedule then ends at the new last step; see `phases`",
        "trainer.callbacks": "look on; one that changes training answers for it",
        "trainer.profiler": "looks on",
        "trainer.detect_anomaly": "looks on",
        "trainer.log_every_n_steps": "looks on",
        "trainer.enable_progress_bar": "looks on",
        "trainer.enable_model_summary": "looks on",
        "alarms": "look on",
        "divergence": "when a run is given up, which must not keep it from being taken up again",
        "evaluation.every_n_steps": "how often is measured, not what",
        "evaluation.heatmap": "how often is measured, not what",
        "evaluation.batch_problems": "memory alone",
        "rollout.max_batch": "memory alone",
        "rollout.token_budget": "memory alone",
        "update.token_budget": "memory alone (but for loss.reduction=bnpo)",
        "scorer.token_budget": "memory alone",
        "scorer.inner.token_budget": "memory alone",
        "scorer.inner.inner.token_budget": "memory alone",
        "optimizer.foreach": "rounding alone, speed and memory",
        "trainer.benchmark": "speed alone",
        "update.compile": "speed alone",
        "policy.gradient_checkpointing": "memory alone",
        "engine.gpu_memory_utilization": "memory alone",
        "engine.sleep": "memory alone",
        "engine.enforce_eager": "speed alone",
        "scorer.judge.url": "how the judge is reached, not which it is",
        "scorer.judge.key_variable": "how the judge is reached, not which it is",
        "scorer.judge.concurrency": "how the judge is reached, not which it is",
        "scorer.judge.timeout": "how the judge is reached, not which it is",
        "scorer.judge.step_timeout": "how the judge is reached, not which it is",
        "scorer.judge.retries": "how the judge is reached, not which it is",
        "scorer.judge.retry_delay": "how the judge is reached, not which it is",
        "scorer.judge.longest_wait": "how the judge is reached, not which it is",
        "scorer.judge.max_calls": "a budget may be raised when it is spent; what is spent stays counted",
        "scorer.judge.max_tokens": "a budget may be raised when it is spent; what is spent stays counted",
        "reward.terms.accuracy.verifier.workers": "speed alone",
        "reward.terms.accuracy.verifier.cache": "speed alone",
    }
)
"""Keys, with all below them, that a resumed run may have another value of -> why. All others decide what is learnt."""

RENAMED = MappingProxyType({"oar_lightning.credit.gate.GateConfig": "oar_lightning.credit.gates.BilevelGate"})
"""Classes that configs of older versions name -> their names now."""

ADDED = MappingProxyType(
    {
        "entropy": {"_target_": "oar_lightning.objective.entropy.Unadapted"},
        "curriculum": {"_target_": "oar_lightning.data.curriculum.EveryProblem"},
    }
)
"""Blocks that configs of older versions lack -> what such a run had."""

SAME_WEIGHTS = ("policy.attention", "policy.trust_remote_code", "policy.dtype")
"""Keys of `policy` under which the same weights are loaded, up to rounding."""

ABSENT = "nothing"


@dataclass(frozen=True)
class Change:
    """A key whose value is another one than the kept config's; a value that is not there is `ABSENT`."""

    key: str
    before: Any
    now: Any

    def __str__(self) -> str:
        return f"{self.key}: {_shown(self.before)} -> {_shown(self.now)}"


def _shown(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def changes(before: Any, now: Any, key: str = "") -> Iterator[Change]:
    """What differs between two resolved configs, without what may change.

    A key that one of them lacks has the default of its block's `_target_`, where both have the same; where they have not,
    only the keys that both have are compared. Credentials are not, which are not kept.
    """
    if key in MAY_CHANGE:
        return
    if isinstance(before, Mapping) and isinstance(now, Mapping):
        before = {**before, "_target_": RENAMED.get(before["_target_"], before["_target_"])} if "_target_" in before else before
        target, same = now.get("_target_"), now.get("_target_") == before.get("_target_")
        defaults = defaults_of(target) if target is not None and same else {}
        for name in dict.fromkeys([*now, *before]) if same else [name for name in now if name in before or name == "_target_"]:
            values = [side.get(name, defaults.get(name, ABSENT)) for side in (before, now)]
            yield from changes(values[0], values[1], f"{key}.{name}" if key else str(name))
    elif not _equal(before := hidden(before, key), now := hidden(now, key)):
        yield Change(key, before, now)


def _equal(before: Any, now: Any) -> bool:
    """Equal as JSON: it knows no tuples, and to it NaN is NaN."""
    return before == now or json.dumps(before, default=str, sort_keys=True) == json.dumps(now, default=str, sort_keys=True)


def refuse_another_task(run_dir: Path, task: str) -> None:
    """Raises ConfigError: where the folder holds a job of another task, whose config a new one would overwrite."""
    other = (_read(run_dir / "artifacts" / CONFIG) or {}).get("task", task)
    if other != task:
        raise ConfigError(
            f"hydra.run.dir={run_dir} holds a job of task={other}, and one of task={task} would overwrite its config; name "
            "another folder, or remove this one"
        )


def kept_problems(settings: Settings) -> dict[str, str]:
    """Key of a source of problems -> fingerprint."""
    sources = {f"data.evaluation.{name}": source for name, source in settings.eval_sets.items()}
    if settings.train is not None:
        sources = {"data.train": settings.train} | sources
    return {key: fingerprint(source) for key, source in sources.items()}


def changed_since(run_dir: Path, config: Mapping[str, Any], problems: Mapping[str, str]) -> list[Change]:
    """What `config` and `problems` change of what the run in `run_dir` has kept; nothing, with a warning, where it kept none.

    Raises:
        ConfigError: where it cannot be read.
    """
    kept = _read(run_dir / "artifacts" / CONFIG)
    if kept is None:
        log.warning("%s keeps no config to compare with; it goes on with the one given now", run_dir)
        return []
    found = list(changes({**ADDED, **kept}, config))
    if kept.get("loss", {}).get("reduction") == "bnpo":  # its mean is over a pass, and more ranks make more of them
        for block, name in (("update", "token_budget"), ("trainer", "devices"), ("trainer", "num_nodes")):
            values = [side.get(block, {}).get(name) for side in (kept, config)]
            found += changes(values[0], values[1], f"{block}.{name} (with loss.reduction=bnpo)")
    found += phases(kept, config)
    before = _read(run_dir / "artifacts" / PROBLEMS) or {}
    return [*found, *(Change(f"content of {key}", before[key], problems[key]) for key in differing(before, problems))]


def check_base(run_dir: Path, config: Mapping[str, Any], adapters: bool) -> bool:
    """Compare the policy whose config and tokenizer complete a checkpoint (and whose frozen weights do, where it holds
    `adapters` alone) with the one of the run. Whether its weights are the same to the last bit, or loaded in another dtype.

    Raises:
        ConfigError: where it is another one, whose shapes may be the same.
    """
    kept = _read(run_dir / "artifacts" / CONFIG)
    if kept is None:
        log.warning("%s keeps no config: whether its weights are of the policy given now is not known", run_dir)
        return True
    changed = list(changes(kept.get("policy"), config.get("policy"), "policy"))
    if found := [change for change in changed if change.key not in SAME_WEIGHTS]:
        what = "adapters alone, and the policy under them" if adapters else "weights, and the policy whose config they have"
        raise ConfigError(
            f"{run_dir} keeps {what} was another one than the one given now: {'; '.join(map(str, found))}. Give the old "
            f"values (of a policy that was moved: its new place, here and in {run_dir / 'artifacts' / CONFIG})"
        )
    return all(change.key != "policy.dtype" for change in changed)


def phases(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[Change]:
    """Another number of steps, where something begins at a fraction of them: what had begun would end and begin again."""
    steps = [side.get("trainer", {}).get("max_steps") for side in (before, now)]
    begins = {
        "loss.kl_from": now.get("loss", {}).get("kl_coef") and now["loss"].get("kl_from"),
        "advantage.confidence_from": now.get("advantage", {}).get("confidence_from"),
        "curriculum.second_stage": now.get("curriculum", {}).get("second_stage"),
    }
    set_ones = [f"{key}={at}" for key, at in begins.items() if at and at < 1]
    return [Change(f"trainer.max_steps (with {', '.join(set_ones)})", *steps)] if set_ones and steps[0] != steps[1] else []


def _read(path: Path) -> dict[str, Any] | None:
    try:
        content = OmegaConf.to_container(OmegaConf.load(path))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, YAMLError, OmegaConfBaseException) as error:
        raise ConfigError(f"{path} cannot be read ({error}); mend it, or remove it to resume without a comparison") from error
    if not isinstance(content, dict) or not content:
        raise ConfigError(f"{path} holds no config; mend it, or remove it to resume without a comparison")
    return {str(key): value for key, value in content.items()}


def refusal(run_dir: Path, found: Iterable[Change]) -> ConfigError:
    """The error that ends a resumption with another config."""
    return ConfigError(
        f"{run_dir} is a run with another config, and resuming would mix the two. Changed: {'; '.join(map(str, found))}. "
        "Give the old values, or start a new run from its last state with resume_changed=true, or from scratch without resume "
        "and ckpt_path"
    )
