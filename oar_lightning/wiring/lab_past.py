"""`lab.past`: runs -> what their methods compare the policy with."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from oar_lightning.common.config_check import ConfigError
from oar_lightning.credit.scorers import Scorer
from oar_lightning.distributed.deepspeed_checkpoint import read_state
from oar_lightning.lab.estimators import Estimator
from oar_lightning.lab.past import WithPast
from oar_lightning.planning.scoring import innermost
from oar_lightning.policy.fingerprint import policy_fingerprint
from oar_lightning.policy.pretrained import LoraSpec, Policy, PretrainedPolicy
from oar_lightning.wiring.resume import checkpoint_at
from oar_lightning.wiring.run_folder import read_config

DEEPEST = 8
"""Scorers around each other in a config that is read; YAML can nest one in itself."""


@dataclass(frozen=True)
class PastRun:
    """A run as its folder tells of it: the class of its scorer, and the policy that it began with.

    `given`: its folder or checkpoint as `lab.past` names it.
    """

    given: str
    scorer: str
    policy: Mapping[str, Any]

    @property
    def key(self) -> str:
        return f"lab.past={self.given}"

    def spec(self, own: PretrainedPolicy, adapters: bool) -> PretrainedPolicy:
        """The policy that it began with, loaded in the way of the lab's own: a run's folder may come from elsewhere, and does
        not decide whether code is run."""
        name, revision, lora = (self.policy.get(key) for key in ("name", "revision", "lora"))
        try:
            if not isinstance(name, str) or not isinstance(revision, str | None):
                raise ValueError(f"policy.name={name}, policy.revision={revision}")
            spec = LoraSpec(**{k: v for k, v in lora.items() if k != "_target_"}) if adapters and lora is not None else None
        except (ValueError, TypeError, AttributeError) as error:
            raise ConfigError(f"{self.key}: its config names no policy that can be loaded ({error})") from error
        return dataclasses.replace(own, name=name, revision=revision, lora=spec, gradient_checkpointing=False)

    def state(self) -> Mapping[str, Any]:
        """What the scorer had learnt, of the run's checkpoint."""
        path = checkpoint_at(self.given, "lab.past")
        try:
            saved = read_state(path) if path.is_dir() else torch.load(path, map_location="cpu", weights_only=True, mmap=True)
            state = saved.get("credit", {}).get("scorer", {})
        except Exception as error:
            what = str(error).partition("\n")[0]
            raise ConfigError(f"{self.key}: {path} is no checkpoint of this project that can be read ({what})") from error
        if not isinstance(state, Mapping) or not state.get("steps"):
            raise ConfigError(f"{self.key}: {path} holds nothing that its scorer has learnt; name a run that has made a step")
        return state


def read_past(given: str | Sequence[str]) -> list[PastRun]:
    """The runs of `lab.past`.

    Raises:
        ConfigError: for a folder without the config of a run.
    """
    return [_read(str(name)) for name in ([given] if isinstance(given, str) else given)]


def _read(given: str) -> PastRun:
    path = Path(given).expanduser().absolute()
    config = read_config(path.parent.parent if path.suffix == ".ckpt" else path)
    node, policy = config.get("scorer"), config.get("policy")
    for _ in range(DEEPEST):
        if isinstance(node, Mapping) and isinstance(node.get("inner"), Mapping):
            node = node["inner"]
    if not isinstance(node, Mapping) or not isinstance(policy, Mapping):
        raise ConfigError(f"lab.past={given} holds no config of a run; give a run's folder, or its checkpoints/last.ckpt")
    return PastRun(given, str(node.get("_target_")).rpartition(".")[2], policy)


def check_past(estimators: Sequence[Estimator], runs: Sequence[PastRun]) -> None:
    """Hold estimators and runs against each other.

    Raises:
        ConfigError: for an estimator whose past is not given, for two pasts of one, and for a run that no estimator needs.
    """
    asking = [e for e in estimators if e.scorer.only_in_training]
    for estimator in asking:
        fitting = [run for run in runs if fits(run, estimator.scorer)]
        if not fitting:
            others = f", not {', '.join(f'{run.given} (of scorer {run.scorer})' for run in runs)}" if runs else ""
            raise ConfigError(
                f"lab.estimators.{estimator.name}: {innermost(estimator.scorer).name} compares the policy with its past in "
                f"training; give a run of this scorer, lab.past=[<run folder>]{others}, and a policy that has been trained, "
                "policy=hf policy.name=<run folder>/policy; or use another scorer"
            )
        if len(fitting) > 1:
            raise ConfigError(
                f"lab.past names {len(fitting)} runs of scorer {fitting[0].scorer}, and lab.estimators.{estimator.name} has "
                f"one past; leave out all but one of {', '.join(run.given for run in fitting)}"
            )
    for run in runs:
        if not any(fits(run, e.scorer) for e in asking):
            raise ConfigError(
                f"{run.key} is a run of scorer {run.scorer}, and no estimator is that compares with its past; leave it out, or "
                "add the estimator, e.g. +scorer@lab.estimators.spro.scorer=spro"
            )


def fits(run: PastRun, scorer: Scorer) -> bool:
    return type(innermost(scorer)).__name__ == run.scorer


def with_past(estimator: Estimator, runs: Sequence[PastRun], own: PretrainedPolicy, policy: Policy) -> Estimator:
    """The estimator with its past, if its scorer compares with one; `policy` is the lab's, and `own` names it.

    Raises:
        ConfigError: where the run's policy or its checkpoint cannot be loaded, or says nothing of the lab's policy.
    """
    scorer = estimator.scorer
    if not scorer.only_in_training:
        return estimator
    run = next(run for run in runs if fits(run, scorer))
    state = run.state() if scorer.learns else {}
    try:
        start = run.spec(own, adapters=scorer.learns).load()
    except (ValueError, ImportError) as error:
        raise ConfigError(f"{run.key}: the policy that it began with: {error}") from error
    if start.tokenizer.get_vocab() != policy.tokenizer.get_vocab():
        raise ConfigError(
            f"{run.key} began with policy.name={run.policy['name']}, whose tokens are others than those of the lab's "
            f"policy.name={own.name}; give policy=hf policy.name=<run folder>/policy"
        )
    start.model.to(policy.model.device)
    if scorer.needs_old and scorer.needs_reference and policy_fingerprint(*policy) == policy_fingerprint(*start):
        raise ConfigError(
            f"policy.name={own.name} is the policy that {run.key} began with, so that {scorer.name} scores 0 everywhere; give "
            "the trained one, policy=hf policy.name=<run folder>/policy"
        )
    return dataclasses.replace(estimator, scorer=WithPast(scorer, start.model, state, run.key))
