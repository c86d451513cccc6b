"""task=lab: scorers against what is known of the same completions; nothing is trained or sent to MLflow."""

from __future__ import annotations

import contextlib
import gzip
import itertools
import json
import logging
import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hydra.core.hydra_config import HydraConfig
from hydra.utils import instantiate
from omegaconf import DictConfig
from rich.console import Console

from oar_lightning.answers.reward import check_accuracy
from oar_lightning.common.config_check import ConfigError, check_keys
from oar_lightning.common.progress import counted_progress
from oar_lightning.credit.component import Tools
from oar_lightning.credit.gates import BilevelGate, Gate, SignedGate
from oar_lightning.credit.scorers import Oracle, Scorer, Uniform, as_scorer
from oar_lightning.data.stream import ProblemStream, eval_set_problems
from oar_lightning.inspection.completion_scores import most_tokens
from oar_lightning.inspection.recorded import RecordedCompletion, read_recorded
from oar_lightning.inspection.scorer_trial import needs_trial, try_scorer
from oar_lightning.lab import LabConfig
from oar_lightning.lab.completions import Groups, read, sample, study
from oar_lightning.lab.estimators import Estimator
from oar_lightning.lab.measure_tables import measure_tables
from oar_lightning.lab.record import to_json, token_rows
from oar_lightning.lab.removal.kept_reward import MEAN
from oar_lightning.lab.run import Lab
from oar_lightning.lab.store import Store, policy_fingerprint
from oar_lightning.lab.table import compared, difference_table, table, truth_table
from oar_lightning.lab.truth import Source
from oar_lightning.objective.advantage import AdvantageConfig
from oar_lightning.objective.loss import LossConfig
from oar_lightning.policy.pretrained import Policy
from oar_lightning.rollout import EngineConfig, RolloutStage, SamplingConfig, VllmConfig, build_stage, check_length
from oar_lightning.rollout.continuations import Continuer, Encoder, Reprompter
from oar_lightning.training.method import Method, check_credit
from oar_lightning.types import MathProblem
from oar_lightning.wiring.config import plain
from oar_lightning.wiring.data import build_eval_sets, build_train
from oar_lightning.wiring.device import choose_device, mixed_precision, seed_everything, set_threads
from oar_lightning.wiring.policy import load_policy

log = logging.getLogger(__name__)

TOKENS = "tokens.jsonl.gz"
"""The file beside results.json with all numbers of each completion's tokens."""


@dataclass(frozen=True)
class Job:
    """What the long work needs."""

    config: LabConfig
    policy: Policy
    stage: RolloutStage
    sampling: SamplingConfig
    advantage: AdvantageConfig
    estimators: Sequence[Estimator]
    sources: Mapping[str, Source]
    problems: Sequence[MathProblem]
    recorded: Groups
    dropped: Counter[str]
    store: Store
    loss: LossConfig
    seed: int
    precision: contextlib.AbstractContextManager[None]
    output: Path


def prepare(cfg: DictConfig) -> Callable[[], float | None]:
    """Check, read the problems or the recorded completions, load the policy and try the estimators."""
    if cfg.resume or cfg.ckpt_path is not None:
        raise ConfigError(
            "task=lab goes on by itself from what lab.cache keeps: leave out resume and ckpt_path; the policy is set by "
            "policy.name (task=export makes one of a checkpoint)"
        )
    config: LabConfig = instantiate(cfg.lab, _convert_="all")
    spec, rewards, answer = instantiate(cfg.policy), instantiate(cfg.reward, _convert_="all"), instantiate(cfg.answer)
    sampling, engine, advantage = instantiate(cfg.rollout), instantiate(cfg.engine), instantiate(cfg.advantage)
    loss: LossConfig = instantiate(cfg.loss)
    check_faithfulness(config, engine)
    engine.check(sampling)
    check_accuracy(rewards)
    dropped: Counter[str] = Counter()
    recorded = read_files(config, dropped)
    problems = [] if recorded else choose_problems(cfg, config)
    first = problems[0] if problems else next((r.problem for r in recorded if r.problem.answer), recorded[0].problem)
    estimators, sources = readable(build_estimators(cfg, config), build_sources(config), first)
    if config.baseline not in (known := [e.name for e in estimators]):
        raise ConfigError(f"lab.baseline={config.baseline} is none of the estimators, which are {', '.join(known)}")
    if first.answer:
        rewards.try_out(first)
    set_threads(cfg.num_threads)
    seed_everything(cfg.seed)
    device = choose_device(str(cfg.trainer.accelerator))
    policy = load_policy(spec, str(cfg.task), device)
    prompt = instantiate(cfg.data.prompt, tokenizer=policy.tokenizer)
    stage = build_stage(policy, prompt, answer, rewards, engine)
    prompt.render(first)  # a missing chat template fails here, before long work
    if problems:
        check_length(policy, prompt, problems, sampling)
    groups = read(recorded, policy, stage, most_tokens(policy, config.max_tokens), dropped)
    if recorded and not groups:
        raise ConfigError(f"lab.files={config.files}: no row can be studied ({dict(dropped)})")
    tools = Tools(Continuer(stage, sampling), Reprompter(stage), Encoder(stage))
    for estimator in estimators:
        estimator.use(tools)
        if needs_trial(estimator.scorer):
            try_scorer(estimator.scorer, policy, stage, first)
    store = Store(Path(config.cache).expanduser(), identity(cfg, policy))
    job = Job(
        config=config,
        policy=policy,
        stage=stage,
        sampling=sampling,
        advantage=advantage,
        estimators=estimators,
        sources=sources,
        problems=problems,
        recorded=groups,
        dropped=dropped,
        store=store,
        loss=loss,
        seed=int(cfg.seed),
        precision=mixed_precision(cfg.trainer.get("precision"), device),
        output=Path(HydraConfig.get().runtime.output_dir) / "results.json",
    )
    return lambda: run(job, plain(cfg))


def check_faithfulness(config: LabConfig, engine: EngineConfig) -> None:
    """Raise ConfigError for a fill that an engine with a copy of the policy cannot read."""
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


def choose_problems(cfg: DictConfig, config: LabConfig) -> list[MathProblem]:
    """The problems whose completions are sampled."""
    if config.set == "train":
        return ProblemStream(build_train(cfg), int(cfg.seed)).take(config.problems)
    sets = build_eval_sets(cfg)
    if config.set not in sets:
        raise ConfigError(f"lab.set={config.set} must be train or one of data.evaluation: {', '.join(sets) or 'there is none'}")
    return eval_set_problems(sets[config.set], config.problems, config.set)


def build_estimators(cfg: DictConfig, config: LabConfig) -> list[Estimator]:
    """Those of lab.estimators, and the config's own scorer and gate where they are not plain GRPO."""
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
        found.append(_checked(str(name), node["scorer"], node.get("gate"), bool(node.get("control"))))
    own = as_scorer(instantiate(cfg.scorer))
    if not isinstance(own, Uniform):
        chosen = str(HydraConfig.get().runtime.choices.get("scorer"))
        name = chosen if chosen not in config.estimators else f"{chosen} (scorer)"
        found.append(_checked(name, own, instantiate(cfg.gate), False))
    return found


def _checked(name: str, candidate: Any, gate: Gate | None, control: bool) -> Estimator:
    try:
        scorer: Scorer = as_scorer(candidate)
        if gate is None:
            gate = SignedGate(region=scorer.covers) if scorer.signed else BilevelGate()
        check_credit(Method(scorer, gate))
    except ValueError as error:
        raise ConfigError(f"lab.estimators.{name}: {error}") from error
    if scorer.needs_reference:
        raise ConfigError(
            f"lab.estimators.{name}: {scorer.name} compares the policy with the one that training began with, and a lab has "
            "one policy; use another scorer"
        )
    return Estimator(name, scorer, gate, control)


def build_sources(config: LabConfig) -> dict[str, Source]:
    found = {str(name): source for name, source in config.truths.items() if source is not None}
    for name, source in found.items():
        if not isinstance(source, Source) or name == "monte_carlo":
            raise ConfigError(f"lab.truths.{name} must be a lab.truth.Source of another name than monte_carlo, got {source!r}")
    return found


def readable(
    estimators: Sequence[Estimator], sources: Mapping[str, Source], problem: MathProblem
) -> tuple[list[Estimator], dict[str, Source]]:
    """What can read the problems. What knows another task's problems alone is left out, which is logged."""

    def reads(what: str, part: object) -> bool:
        try:
            if isinstance(part, Source):
                part.check(problem)
            elif isinstance(part, Oracle):
                part.locate(problem, "")
        except ValueError as error:
            log.warning("left out %s: %s", what, error)
            return False
        return True

    kept = [e for e in estimators if reads(f"lab.estimators.{e.name}", e.scorer)]
    return kept, {name: source for name, source in sources.items() if reads(f"lab.truths.{name}", source)}


def identity(cfg: DictConfig, policy: Policy) -> str:
    """All that sampled values depend on beside their prefixes and seeds: the policy, how it samples, who judges."""
    config = plain(cfg)
    sampling = {k: v for k, v in config["rollout"].items() if k not in ("max_batch", "token_budget")}
    settings = [sampling, config["engine"], config["answer"], config["reward"], str(cfg.trainer.get("precision"))]
    return json.dumps([policy_fingerprint(policy.model, policy.tokenizer), settings], sort_keys=True)


def run(job: Job, settings: Mapping[str, Any]) -> None:
    """Sample or take the completions, find out what there is to find, print it and write it."""
    config, policy = job.config, job.policy
    with job.precision:
        groups = job.recorded or sampled(job)
        studied = study(policy, job.stage, job.advantage, groups)
        continuer = Continuer(job.stage, job.sampling)
        lab = Lab(policy.model, studied, job.estimators, job.sources, continuer, job.store, config, job.seed, job.loss)
        whole = lab.run()
    report(job, lab, settings, whole)
    job.store.close()
    if not whole:
        log.warning("stopped; started again with the same settings, it goes on from what %s keeps", config.cache)
        sys.exit(130)


def sampled(job: Job) -> Groups:
    total = len(job.problems) * job.config.samples
    with counted_progress("sampling", "completions", total) as advance:
        return sample(job.policy, job.stage, job.sampling, job.problems, job.config.samples, job.seed, job.store, advance)


def report(job: Job, lab: Lab, settings: Mapping[str, Any], whole: bool) -> None:
    """Print the tables and write all numbers."""
    findings = lab.findings()
    reliabilities = {truth.name: lab.reliability(truth) for truth in lab.truths}
    baseline = job.config.baseline
    found = compared(findings, baseline) if baseline in [e.name for e in findings.estimates] else []
    content = {
        "settings": settings,
        "whole": whole,
        "left_out": dict(job.dropped),
        "continuations": lab.spent._asdict(),
        **to_json(findings, reliabilities, found),
    }
    job.output.parent.mkdir(parents=True, exist_ok=True)
    job.output.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    with gzip.open(job.output.with_name(TOKENS), "wt", encoding="utf-8") as file:
        file.writelines(json.dumps(row, ensure_ascii=False) + "\n" for row in token_rows(findings))
    console = Console()
    if job.dropped:
        log.warning("lab.files: left out %s", dict(job.dropped))
    correct = [c for c in findings.studied.correct if c is not None]
    right = f"{sum(correct)} of {len(correct)} right" if correct else "no gold answers"
    tokens = int(findings.studied.rollouts.reasoning_mask.sum())
    console.print(
        f"{len(findings.studied.ids)} completions of {len(set(findings.studied.problem))} problems ({right}), {tokens:,} "
        f"reasoning tokens, {int(findings.studied.free.sum()):,} of them free; {lab.spent.continuations:,} continuations, "
        f"{lab.spent.sampled:,} of them sampled now",
        soft_wrap=True,
        highlight=False,
    )
    if not findings.truths:
        log.warning("nothing is known of these completions: what is below are costs; see lab.truths, lab.continuations")
    else:
        truth_table(findings, reliabilities).print(console)
    if findings.estimates:
        table(findings).print(console)
    for further in measure_tables(findings):
        further.print(console)
    if found:
        difference_table(findings, found, baseline).print(console)
    console.print(f"results: {job.output}", soft_wrap=True)
