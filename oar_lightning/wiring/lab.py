"""Config -> what a lab studies: its problems or recorded completions, its estimators, its sources of truth."""

from __future__ import annotations

import itertools
import json
import logging
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from hydra.utils import instantiate
from omegaconf import DictConfig

from oar_lightning.common.config_check import ConfigError, check_keys, warn_idle
from oar_lightning.common.credentials import hidden
from oar_lightning.credit.fit import usual_gate
from oar_lightning.credit.gates import Gate
from oar_lightning.credit.scorers import Scorer, Uniform, as_scorer
from oar_lightning.data.filters import PromptLength, training_filter
from oar_lightning.data.stream import Keep, ProblemStream, eval_set_problems
from oar_lightning.inspection.recorded import RecordedCompletion, read_recorded
from oar_lightning.lab import LabConfig
from oar_lightning.lab.estimators import Estimator
from oar_lightning.lab.gradients.batch import check_reduction
from oar_lightning.lab.removal.kept_reward import MEAN
from oar_lightning.lab.truth import Source
from oar_lightning.objective.loss import LossConfig
from oar_lightning.policy.fingerprint import architecture, policy_fingerprint
from oar_lightning.policy.fresh import FreshPolicy
from oar_lightning.policy.pretrained import Policy, PretrainedPolicy
from oar_lightning.rollout import EngineConfig, VllmConfig
from oar_lightning.rollout.hf import eos_token_ids
from oar_lightning.training.method import Method, check_credit
from oar_lightning.types import MathProblem
from oar_lightning.wiring.component_name import component_name
from oar_lightning.wiring.config import plain
from oar_lightning.wiring.data import build_eval_sets, build_train

log = logging.getLogger(__name__)


def check_measures(config: LabConfig, engine: EngineConfig, loss: LossConfig) -> None:
    """Settings without effect are warned of.

    Raises:
        ConfigError: for a fill that an engine with a copy of the policy cannot read, and as `check_reduction` does.
    """
    warn_idle("lab", config.idle)
    if config.gradients is not None:
        check_reduction(loss)
    part = config.faithfulness
    if part is not None and part.completions and MEAN in part.fills and isinstance(engine, VllmConfig):
        raise ConfigError(
            "lab.faithfulness.fills holds mean_embedding, which is no token, and engine=vllm samples from a copy of the "
            "policy; leave the fill out, or choose another engine"
        )


def read_files(config: LabConfig, dropped: Counter[str]) -> list[RecordedCompletion]:
    """The recorded completions; none where none are named."""
    if not config.files:
        return []
    found = list(itertools.islice(read_recorded(config.files, dropped, "lab.files"), config.limit))
    if not found:
        raise ConfigError(f"lab.files={config.files}: no usable row ({dict(dropped) or 'the files are empty'})")
    return found


def choose_problems(cfg: DictConfig, config: LabConfig, policy: PretrainedPolicy | FreshPolicy) -> list[MathProblem]:
    """The problems whose completions are sampled; of the training set those on which `policy` would be trained."""
    if config.set == "train":
        stream = ProblemStream(build_train(cfg), int(cfg.seed), keep=_keep_rule(cfg, policy))
        found = stream.of_first_epoch(config.problems)
        if stream.dropped:
            log.info("data.train: left out %s", dict(stream.dropped))
        if len(found) < config.problems:
            log.warning(
                "lab.problems=%d: the training set has %d to train on; all of them are taken", config.problems, len(found)
            )
        return found
    sets = build_eval_sets(cfg)
    if config.set not in sets:
        raise ConfigError(f"lab.set={config.set} must be train or one of data.evaluation: {', '.join(sets) or 'there is none'}")
    return eval_set_problems(sets[config.set], config.problems, config.set)


def _keep_rule(cfg: DictConfig, policy: PretrainedPolicy | FreshPolicy) -> Keep:
    longest, length = cfg.data.get("max_prompt_tokens"), None
    if longest is not None and isinstance(policy, PretrainedPolicy):  # a lab refuses the other one, whose weights are random
        tokenizer = policy.load_tokenizer()
        length = PromptLength(instantiate(cfg.data.prompt, tokenizer=tokenizer), tokenizer, int(longest))
    return training_filter(build_eval_sets(cfg) if cfg.data.get("decontaminate") else {}, cfg.evaluation.problems, length)


def build_estimators(cfg: DictConfig, config: LabConfig, loss: LossConfig) -> list[Estimator]:
    """Those of lab.estimators, and the config's own scorer and gate where they are not plain GRPO; `loss` is the one of which
    gradients are taken."""
    found = []
    for name, node in config.estimators.items():
        if node is None:
            continue
        where = f"lab.estimators.{name}"
        if not isinstance(node, Mapping):
            raise ConfigError(f"{where}={node}: give it a scorer, e.g. +scorer@{where}.scorer=oar_p")
        check_keys(map(str, node), ("scorer", "gate", "control"), where)
        if node.get("scorer") is None:
            raise ConfigError(f"{where} has no scorer; set one, e.g. +scorer@{where}.scorer=oar_p")
        found.append(_checked(str(name), node["scorer"], node.get("gate"), bool(node.get("control")), loss))
    own = as_scorer(instantiate(cfg.scorer))
    if not isinstance(own, Uniform):
        chosen = component_name(cfg, "scorer")
        name = chosen if chosen not in config.estimators else f"{chosen} (scorer)"
        found.append(_checked(name, own, instantiate(cfg.gate), False, loss))
    return found


def _checked(name: str, candidate: Any, gate: Gate | None, control: bool, loss: LossConfig) -> Estimator:
    try:
        scorer: Scorer = as_scorer(candidate)
        gate = usual_gate(scorer) if gate is None else gate
        check_credit(Method(scorer, gate, loss=loss))
    except ValueError as error:
        raise ConfigError(f"lab.estimators.{name}: {error}") from error
    return Estimator(name, scorer, gate, control)


def build_sources(config: LabConfig) -> dict[str, Source]:
    found = {str(name): source for name, source in config.truths.items() if source is not None}
    for name, source in found.items():
        if not isinstance(source, Source) or name == "monte_carlo":
            raise ConfigError(f"lab.truths.{name} must be a lab.truth.Source of another name than monte_carlo, got {source!r}")
    return found


def readable(
    estimators: Sequence[Estimator], sources: Mapping[str, Source], problems: Iterable[MathProblem]
) -> tuple[list[Estimator], dict[str, Source]]:
    """What can read all the problems. What knows another task's problems alone is left out, which is logged."""
    distinct = list({problem.question: problem for problem in problems}.values())

    def reads(what: str, check: Callable[[MathProblem], None]) -> bool:
        try:
            for problem in distinct:
                check(problem)
        except ValueError as error:
            log.warning("left out %s: %s", what, error)
            return False
        return True

    kept = [e for e in estimators if reads(f"lab.estimators.{e.name}", e.scorer.check_problem)]
    return kept, {name: source for name, source in sources.items() if reads(f"lab.truths.{name}", source.check)}


def identity(cfg: DictConfig, policy: Policy) -> str:
    """All that sampled values depend on beside their prefixes and seeds: the policy, how it samples, who judges."""
    config = hidden(plain(cfg))
    sampling = {k: v for k, v in config["rollout"].items() if k not in ("max_batch", "token_budget")}
    settings = [sampling, config["engine"], config["answer"], config["reward"], str(cfg.trainer.get("precision"))]
    settings += [architecture(policy.model), eos_token_ids(policy.model, policy.tokenizer)]
    return json.dumps([policy_fingerprint(policy.model, policy.tokenizer), settings], sort_keys=True)
