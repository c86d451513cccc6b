"""A run's folder and its evaluations -> the model card of its policy."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from oar_lightning.common.credentials import hidden
from oar_lightning.common.mappings import flatten
from oar_lightning.data.mixture import Mixture
from oar_lightning.evaluation.tables import accuracy_names, percent
from oar_lightning.policy.model_card import (
    EVALUATION,
    HUB_ID,
    TRAINING,
    UNKNOWN,
    Accuracy,
    CardFacts,
    DataSource,
    base_of,
    licence_of,
    local_folder,
    write_card,
)
from oar_lightning.wiring.run_folder import Origin, read_config, read_origin

METHODS = {
    "train": "reinforcement learning with verifiable rewards",
    "warm_start": "supervised training on worked solutions",
}

WEIGHTS = "reward.weights"

SECTIONS = {
    "train": ("scorer", "gate", "advantage", "loss", "entropy", WEIGHTS, "update", "rollout"),
    "warm_start": ("supervised",),
}
"""The sections of a config that say what a task does, beside those of `ALWAYS`."""

CHOSEN_BY_CLASS = ("scorer", "gate", "entropy", "optimizer")
"""Sections whose class says what they are."""

ALWAYS = ("policy.lora", "optimizer", "schedule", "trainer.max_steps", "trainer.precision", "trainer.gradient_clip_val")


def write_run_card(folder: Path, run_dir: Path, step: int, history: Sequence[Mapping[str, Any]]) -> None:
    """Write the card of a run's policy into its folder. `history`: the evaluations as `EvaluationCallback` keeps them."""
    write_card(folder, card_facts(run_dir, step, history))


def card_facts(run_dir: Path, step: int, history: Sequence[Mapping[str, Any]]) -> CardFacts:
    config, origin = read_config(run_dir), read_origin(run_dir)
    task = str(config.get("task"))
    rows = list(accuracies(history))
    seed, policy = config.get("seed"), config.get("policy")
    return CardFacts(
        name=str(config.get("name") or run_dir.name),
        step=step,
        method=METHODS.get(task, "training"),
        base=base_of(policy) if isinstance(policy, dict) else None,
        settings=list(settings(config, (*SECTIONS.get(task, ()), *ALWAYS))),
        data=list(data_sources(config, origin, step)),
        accuracies=rows,
        measured=(history[0]["step"], history[-1]["step"]) if rows else (0, 0),
        former=[(parent.step, parent.changed) for parent in origin.parents],
        command=origin.command,
        revision=", then ".join(origin.revisions) or None,
        seed=seed if isinstance(seed, int) else None,
    )


def accuracies(history: Sequence[Mapping[str, Any]]) -> Iterator[Accuracy]:
    """The accuracies of the first and the last evaluation of each set."""
    for name in dict.fromkeys(row["benchmark"] for row in history):
        rows = [row["metrics"] for row in history if row["benchmark"] == name]
        before, after = rows[0], rows[-1]
        for metric in accuracy_names(after):
            if metric in before:
                yield Accuracy(name, metric, percent(before, metric), percent(after, metric), after[metric])


def settings(config: Mapping[str, Any], sections: Sequence[str]) -> Iterator[tuple[str, str]]:
    """(section, its keys and values) of the sections that the config has."""
    for section in sections:
        value = _at(config, section)
        if section == WEIGHTS and isinstance(terms := _at(config, "reward.terms"), dict):
            value = dict.fromkeys(terms, 1.0) | (value if isinstance(value, dict) else {})  # 1 where none is given
        if isinstance(value, dict):
            keys = {key: v for key, v in flatten(value).items() if not key.rpartition(".")[2].startswith("_")}
            parts = [f"{key}={_shown(hidden(v, key))}" for key, v in keys.items()]
            target = str(value.get("_target_", "")).rpartition(".")[2] if section in CHOSEN_BY_CLASS else ""
            yield section, f"{target}: {', '.join(parts)}" if target and parts else target or ", ".join(parts)
        elif value is not None:
            yield section, str(value)


def _shown(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, default=str, ensure_ascii=False)


def data_sources(config: Mapping[str, Any], origin: Origin, step: int) -> Iterator[DataSource]:
    train, sets = _at(config, "data.train"), _at(config, "data.evaluation")
    if isinstance(train, dict):
        count = origin.problems.get(TRAINING)
        since = origin.parent.step if origin.parent else 0
        words = "; ".join([*([f"{count}"] if count else []), *drawn(config, step, since)]) or "not counted"
        for node, share in unmixed(train):
            yield source(TRAINING, node, words if share == 1 else f"{words}; {share:.3g} of the draws")
    for name, node in sets.items() if isinstance(sets, dict) else ():
        count = origin.problems.get(f"{EVALUATION}{name}")
        yield source(f"{EVALUATION}{name}", node, str(count) if count else "not counted")


def unmixed(node: Mapping[str, Any], share: float = 1.0) -> Iterator[tuple[Any, float]]:
    """The sources of a mixture, however deep, each with the part of the draws that it has on average; another source itself."""
    if str(node.get("_target_")).rpartition(".")[2] != Mixture.__name__:
        yield node, share
        return
    try:
        total = sum(node["weights"][name] for name in node["sources"])
        parts = [(inner, share * node["weights"][name] / total) for name, inner in node["sources"].items()]
    except (TypeError, KeyError, ZeroDivisionError, AttributeError):  # an older or a damaged config
        yield node, share
        return
    for inner, part in parts:
        yield from unmixed(inner, part) if isinstance(inner, Mapping) else [(inner, part)]


def drawn(config: Mapping[str, Any], step: int, since: int = 0) -> Iterator[str]:
    """How many problems the optimizer steps after `since` have taken, each as often as it came."""
    update, supervised = _at(config, "update"), _at(config, "supervised.batch_size")
    after = f" after step {since}" if since else ""
    try:
        if config.get("task") == "train":
            steps = update["inner_epochs"] * update["minibatches"]
            batches = math.ceil(step / steps) - math.ceil(since / steps)
            yield f"{batches * update['problems']} drawn{after}, {update['group_size']} completions each"
        elif config.get("task") == "warm_start":
            yield f"{(step - since) * supervised} drawn{after}"
    except (TypeError, KeyError, ZeroDivisionError):  # an older or a damaged config
        return


def source(role: str, node: Any, problems: str) -> DataSource:
    """A section of `data` as a row of the card."""
    if not isinstance(node, dict):
        return DataSource(role, "not known", problems, UNKNOWN)
    if isinstance(path := node.get("path"), str):
        parts = [f"{key} {node[key]}" for key in ("name", "split", "revision") if node.get(key)]
        folder = local_folder(path)
        hub_id = path if folder is None and HUB_ID.fullmatch(path) else None
        words = ", ".join([hub_id or f"the local folder {Path(path).name}", *parts])
        revision = node.get("revision")
        licence = licence_of(folder, hub_id, "dataset", revision if isinstance(revision, str) else None)
        return DataSource(role, words, problems, licence, hub_id)
    if paths := node.get("paths"):
        names = [Path(str(file)).name for file in (paths if isinstance(paths, list) else [paths])]
        return DataSource(role, f"local files: {', '.join(names)}", problems, UNKNOWN)
    target = str(node.get("_target_"))
    licence = "apache-2.0, as oar_lightning" if target.startswith("oar_lightning.") else UNKNOWN
    return DataSource(role, f"generated by {target.rpartition('.')[2]}", problems, licence)


def _at(config: Any, path: str) -> Any:
    """The value at a dotted path; None where there is none."""
    for name in path.split("."):
        config = config.get(name) if isinstance(config, Mapping) else None
    return config
