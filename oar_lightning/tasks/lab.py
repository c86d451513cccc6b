"""task=lab: scorers against what is known of the same completions; nothing is trained."""

from __future__ import annotations

import contextlib
import gzip
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
from oar_lightning.common.config_check import ConfigError
from oar_lightning.common.credentials import hidden
from oar_lightning.common.outputs import page_folder, replace_file
from oar_lightning.common.progress import counted_progress
from oar_lightning.inspection.by_problem import check_by_problem, most_tokens
from oar_lightning.inspection.credit_trial import needs_trial, try_credit
from oar_lightning.lab import LabConfig
from oar_lightning.lab.completions import Groups, read, sample, study
from oar_lightning.lab.estimators import Estimator
from oar_lightning.lab.measure_tables import measure_tables
from oar_lightning.lab.page import PAGE, RESULTS, TITLE, TOKENS, LabRecord, render_page, write_report
from oar_lightning.lab.record import to_json, token_rows
from oar_lightning.lab.run import Lab
from oar_lightning.lab.store import Store
from oar_lightning.lab.table import compared, difference_table, headlines, ranking, table, truth_table
from oar_lightning.lab.truth import Source
from oar_lightning.objective.advantage import AdvantageConfig
from oar_lightning.objective.loss import LossConfig
from oar_lightning.policy.pretrained import Policy
from oar_lightning.rollout import RolloutStage, SamplingConfig, build_stage, check_length
from oar_lightning.rollout.continuations import Continuer, RolloutTools
from oar_lightning.tracking.tracker import Tracker
from oar_lightning.types import MathProblem
from oar_lightning.wiring.claim import claim
from oar_lightning.wiring.config import plain
from oar_lightning.wiring.device import choose_device, mixed_precision, seed_everything, set_threads
from oar_lightning.wiring.kept_config import refuse_another_task
from oar_lightning.wiring.lab import (
    build_estimators,
    build_sources,
    check_measures,
    choose_problems,
    identity,
    read_files,
    readable,
)
from oar_lightning.wiring.lab_past import check_past, read_past, with_past
from oar_lightning.wiring.one_process import check_one_process
from oar_lightning.wiring.policy import load_policy
from oar_lightning.wiring.run import build_logger, build_others
from oar_lightning.wiring.run_folder import WHERE_IT_IS_KEPT, logged, read_origin
from oar_lightning.wiring.run_tags import run_parameters, run_tags

log = logging.getLogger(__name__)


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
    run_dir: Path
    tracker: Tracker


def refuse_used(own: Path) -> None:
    """Raises ConfigError: where the folder holds a lab that has come to its end."""
    if (own / RESULTS).exists() and LabRecord.read(own).results.get("whole", True):
        raise ConfigError(
            f"hydra.run.dir={own} holds a lab ({RESULTS}), and a new one would overwrite it; name another folder, or remove it"
        )


def prepare(cfg: DictConfig) -> Callable[[], float | None]:
    """Check, read the problems or the recorded completions, load the policy and try the estimators."""
    check_one_process(cfg)
    if cfg.resume or cfg.ckpt_path is not None:
        raise ConfigError(
            "task=lab goes on by itself from what lab.cache keeps: leave out resume and ckpt_path; the policy is set by "
            "policy.name (task=export makes one of a checkpoint)"
        )
    config: LabConfig = instantiate(cfg.lab, _convert_="all")
    if config.report is not None:
        page_folder(config.report, "lab.report", TITLE)
    if config.render is not None:
        return again(config, Path(config.render).expanduser())
    run_dir = Path(HydraConfig.get().runtime.output_dir)
    refuse_used(run_dir)
    refuse_another_task(run_dir, str(cfg.task))
    claim(run_dir, make=False)
    rewards, answer = (instantiate(node, _convert_="all") for node in (cfg.reward, cfg.answer))
    sampling, engine, advantage = instantiate(cfg.rollout), instantiate(cfg.engine), instantiate(cfg.advantage)
    loss: LossConfig = instantiate(cfg.loss)
    check_measures(config, engine, loss)
    engine.check(sampling)
    check_by_problem(advantage, "lab")
    check_accuracy(rewards)
    dropped: Counter[str] = Counter()
    recorded = read_files(config, dropped)
    spec = instantiate(cfg.policy)
    problems = [] if recorded else choose_problems(cfg, config, spec)
    first = problems[0] if problems else next((r.problem for r in recorded if r.problem.answer), recorded[0].problem)
    estimators, sources = readable(
        build_estimators(cfg, config, loss), build_sources(config), problems or [r.problem for r in recorded]
    )
    if config.baseline not in (known := [e.name for e in estimators]):
        raise ConfigError(f"lab.baseline={config.baseline} is none of the estimators, which are {', '.join(known)}")
    past = read_past(config.past)
    check_past(estimators, past)
    rewards.try_out(problems or [r.problem for r in recorded if r.problem.answer])
    set_threads(cfg.num_threads)
    seed_everything(cfg.seed)
    device = choose_device(str(cfg.trainer.accelerator))
    policy = load_policy(spec, str(cfg.task), device, cfg.trainer.get("precision"))
    estimators = [with_past(e, past, spec, policy).after_warmup() for e in estimators]
    prompt = instantiate(cfg.data.prompt, tokenizer=policy.tokenizer)
    stage = build_stage(policy, prompt, answer, rewards, engine)
    prompt.render(first)  # a missing chat template fails here, before long work
    if problems:
        check_length(policy, prompt, problems, sampling, engine)
    groups = read(recorded, policy, stage, most_tokens(policy, config.max_tokens), dropped)
    if recorded and not groups:
        raise ConfigError(f"lab.files={config.files}: no row can be studied ({dict(dropped)})")
    tools = RolloutTools(stage, sampling)
    for estimator in estimators:
        estimator.use(tools)
        if needs_trial(estimator.scorer, estimator.gate):
            try_credit(estimator.scorer, estimator.gate, policy, stage, first)
    claim(run_dir)
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
        run_dir=run_dir,
        tracker=Tracker(run_dir, build_logger(cfg, run_dir), build_others(cfg, run_dir)),
    )
    return lambda: run(job, cfg)


def again(config: LabConfig, folder: Path) -> Callable[[], None]:
    """Write the page of a lab that ended, and nothing else."""
    try:
        record = LabRecord.read(folder)
    except ValueError as error:
        raise ConfigError(f"lab.render: {error}") from error
    return lambda: show(config, folder, record)


def run(job: Job, cfg: DictConfig) -> None:
    """Sample or take the completions, find out what there is to find, print it and write it."""
    config, policy = job.config, job.policy
    with job.precision:
        try:
            groups = job.recorded or sampled(job)
        except KeyboardInterrupt:
            log.warning("stopped; the completions sampled so far are kept in %s", config.cache)
            sys.exit(130)
        studied = study(policy, job.stage, job.advantage, groups, job.sampling.temperature)
        continuer = Continuer(job.stage, job.sampling)
        lab = Lab(policy.model, studied, job.estimators, job.sources, continuer, job.store, config, job.seed, job.loss)
        whole = lab.run()
    report(job, lab, hidden(plain(cfg)), whole)
    job.store.close()
    track(job, cfg, "KILLED" if not whole else "FAILED" if lab.failed else "FINISHED")
    if not whole:
        log.warning("stopped; started again with the same settings, it goes on from what %s keeps", config.cache)
        sys.exit(130)
    if lab.failed:
        log.error("all else was measured and written; what failed is told above, and in %s", job.run_dir / RESULTS)
        sys.exit(1)


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
        "failed": lab.failed,
        "left_out": dict(job.dropped),
        "continuations": lab.spent._asdict(),
        "headlines": [measure.key for measure in headlines(findings)],
        "ranking": ranking(findings),
        "baseline": baseline,
        **to_json(findings, reliabilities, found),
    }
    job.run_dir.mkdir(parents=True, exist_ok=True)
    written = job.run_dir / f".{TOKENS}"
    with gzip.open(written, "wt", encoding="utf-8") as file:
        file.writelines(json.dumps(row, ensure_ascii=False) + "\n" for row in token_rows(findings))
    written.replace(job.run_dir / TOKENS)
    replace_file(job.run_dir / RESULTS, json.dumps(content, indent=1) + "\n")  # last: a lab that has it has come to its end
    console = Console(markup=False)
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
    console.print(f"results: {job.run_dir / RESULTS}", soft_wrap=True)
    show(job.config, job.run_dir, LabRecord.read(job.run_dir))


def show(config: LabConfig, folder: Path, record: LabRecord) -> None:
    """Write the page, and the report where one is asked for."""
    console = Console(markup=False)
    replace_file(folder / PAGE, render_page(record))
    console.print(f"page: {folder / PAGE}", soft_wrap=True)
    if config.report is not None:
        report = Path(config.report).expanduser()
        write_report(report, folder, record, read_origin(folder).command, WHERE_IT_IS_KEPT)
        console.print(f"report: {report / 'README.md'}", soft_wrap=True)


def track(job: Job, cfg: DictConfig, status: str) -> None:
    """An MLflow run with the page, made when all is done: a lab that is killed leaves none. For a server that is away by now
    it is recorded, and `task=sync` delivers it."""
    job.tracker.start(offline=True)
    job.tracker.describe(run_parameters(cfg), run_tags(cfg))
    job.tracker.write_text("config.yaml", logged(cfg))
    job.tracker.attach(job.run_dir / PAGE)
    job.tracker.close(status)
