"""task=evaluate: one policy on every evaluation set. Results are written as they come, and an evaluation can be resumed."""

from __future__ import annotations

import dataclasses
import itertools
import logging
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from hydra.core.hydra_config import HydraConfig
from hydra.utils import instantiate
from omegaconf import DictConfig
from rich.console import Console

from oar_lightning.answers.reward import check_accuracy
from oar_lightning.common.config_check import ConfigError
from oar_lightning.common.credentials import without_users
from oar_lightning.common.locks import FileLock
from oar_lightning.common.progress import counted_progress
from oar_lightning.data.stream import eval_set_problems
from oar_lightning.distributed.launch import is_restart
from oar_lightning.evaluation.evaluate import EvaluationConfig, evaluate
from oar_lightning.evaluation.folder import EvaluationFolder, newest_folder
from oar_lightning.evaluation.metrics import evaluation_metrics
from oar_lightning.evaluation.result import ProblemResult, completions_table
from oar_lightning.evaluation.tables import accuracy_table, level_table
from oar_lightning.policy.fingerprint import policy_fingerprint
from oar_lightning.policy.pretrained import Policy
from oar_lightning.rollout import RolloutStage, SamplingConfig, build_stage, check_length
from oar_lightning.sweep.trial import job_folder
from oar_lightning.tracking.tracker import Tracker
from oar_lightning.types import MathProblem
from oar_lightning.wiring.claim import claim, claim_and
from oar_lightning.wiring.config import plain
from oar_lightning.wiring.data import build_eval_sets
from oar_lightning.wiring.datasets import datasets
from oar_lightning.wiring.device import choose_device, mixed_precision, seed_everything, set_threads
from oar_lightning.wiring.kept_config import refuse_another_task
from oar_lightning.wiring.one_process import check_one_process
from oar_lightning.wiring.policy import load_policy
from oar_lightning.wiring.run import build_logger, build_others
from oar_lightning.wiring.run_folder import logged
from oar_lightning.wiring.run_tags import note_run, run_parameters, run_tags

log = logging.getLogger(__name__)

MANY_CUT_OFF = 0.1
"""The fraction of completions cut off at the token limit from which an evaluation warns of it."""


@dataclass(frozen=True)
class Job:
    """What the long work needs."""

    policy: Policy
    fingerprint: str
    """Of the policy."""
    stage: RolloutStage
    eval_sets: Mapping[str, list[MathProblem]]
    kept: Mapping[str, list[ProblemResult]]
    sampling: SamplingConfig
    config: EvaluationConfig
    device: torch.device
    precision: str
    folder: EvaluationFolder
    goes_on: bool
    """Whether the evaluation had begun in the folder before."""
    tracker: Tracker
    lock: FileLock
    """Of the folder."""


def prepare(cfg: DictConfig) -> Callable[[], float | None]:
    """Check and build. Training data, scorer and optimizer are not read."""
    if cfg.ckpt_path is not None:
        raise ConfigError(
            f"ckpt_path={cfg.ckpt_path}: task=evaluate takes a policy, policy=hf policy.name=<run folder>/policy "
            "(task=export makes one of a checkpoint); an evaluation that was interrupted goes on with resume=true"
        )
    check_one_process(cfg)
    if not cfg.data.get("evaluation"):
        raise ConfigError(
            f"data.evaluation of data={cfg.data.name} names no evaluation set; add one, e.g. data.evaluation.test"
        )
    spec, rewards, answer = (
        instantiate(cfg.policy),
        instantiate(cfg.reward, _convert_="all"),
        instantiate(cfg.answer, _convert_="all"),
    )
    sampling, engine, config = instantiate(cfg.rollout), instantiate(cfg.engine), instantiate(cfg.evaluation)
    engine.check(sampling)
    if (longest := cfg.data.get("max_prompt_tokens")) is not None:
        log.warning("data.max_prompt_tokens=%s: without effect, since an evaluation leaves out no problem", longest)
    check_accuracy(rewards)
    folder = EvaluationFolder(Path(HydraConfig.get().runtime.output_dir))
    if cfg.resume:
        if not folder.begun:  # else its folder is named
            folder = newest_folder(Path(cfg.output_root).resolve() / str(cfg.name) / f"seed{cfg.seed}")
        folder.check(plain(cfg))
    elif is_restart() or job_folder() is not None:
        folder.check_begun(plain(cfg))
    else:
        folder.refuse_used()
    refuse_another_task(folder.path, str(cfg.task))
    claim(folder.path, make=False)
    goes_on = folder.begun  # asked for by resume=true, or started again
    logger = build_logger(cfg, folder.path, folder.run_id, resume=goes_on)
    sources = build_eval_sets(cfg)
    eval_sets = {name: eval_set_problems(source, config.problems, name) for name, source in sources.items()}
    rewards.try_out(*eval_sets.values())
    kept = {name: kept_results(folder, name, problems) for name, problems in eval_sets.items()}
    set_threads(cfg.num_threads)
    seed_everything(cfg.seed)
    device = choose_device(str(cfg.trainer.accelerator))
    policy = load_policy(spec, str(cfg.task), device, cfg.trainer.get("precision"))
    fingerprint = policy_fingerprint(policy.model, policy.tokenizer)
    folder.check_policy(fingerprint)
    prompt = instantiate(cfg.data.prompt, tokenizer=policy.tokenizer)
    prompt.render(next(iter(eval_sets.values()))[0])  # a missing chat template fails here, before long work
    check_length(policy, prompt, itertools.chain.from_iterable(eval_sets.values()), sampling, engine)
    tracker = Tracker(folder.path, logger, build_others(cfg, folder.path))

    def begin() -> None:
        # another process may have begun here, or gone on, and ended while the policy was loaded
        if goes_on:
            kept.update({name: kept_results(folder, name, problems) for name, problems in eval_sets.items()})
        else:
            folder.refuse_used()
        tracker.start()

    job = Job(
        policy=policy,
        fingerprint=fingerprint,
        stage=build_stage(policy, prompt, answer, rewards, engine),
        eval_sets=eval_sets,
        kept=kept,
        sampling=sampling,
        config=config,
        device=device,
        precision=str(cfg.trainer.get("precision")),
        folder=folder,
        goes_on=goes_on,
        tracker=tracker,
        lock=claim_and(folder.path, begin),
    )
    return lambda: run(cfg, job)


def run(cfg: DictConfig, job: Job) -> float:
    """Evaluate all sets, log and print. Returns the sampled accuracy on the first set."""
    try:
        metrics = evaluate_sets(cfg, job)
    finally:
        job.lock.release()
    report(cfg, job, metrics)
    return metrics[next(iter(metrics))][f"avg_at_{job.config.samples}"]


def evaluate_sets(cfg: DictConfig, job: Job) -> dict[str, dict[str, float]]:
    """Evaluation set -> its metrics."""
    tracker = job.tracker
    metrics: dict[str, dict[str, float]] = {}
    with tracker.closing():
        if job.goes_on:
            log.info("continuing %s", job.folder.path)
            tracker.reopen(step=-1)  # the metrics of every set are logged anew
        job.folder.start(plain(cfg), job.fingerprint, tracker.run_id)  # first: from here on it goes on where it is killed
        note_run(tracker)
        tracker.describe(run_parameters(cfg), run_tags(cfg))
        tracker.write_datasets(datasets(cfg, None, job.eval_sets))
        tracker.write_text("config.yaml", logged(cfg))
        log.info("run folder: %s", job.folder.path)
        try:
            for name in job.eval_sets:
                results = evaluate_set(job, name)
                metrics[name] = evaluation_metrics(results)
                log_set(tracker, name, results, metrics[name])
                warn_of_cut_off(name, metrics[name]["truncated"], job.sampling.max_new_tokens)
        except (KeyboardInterrupt, SystemExit) as stop:
            log.warning("stopped in evaluation set %s; to go on, repeat the command with resume=true", name)
            sys.exit(stop.code if isinstance(stop, SystemExit) else 130)
    return metrics


def kept_results(folder: EvaluationFolder, eval_set: str, problems: Sequence[MathProblem]) -> list[ProblemResult]:
    """The results of the first problems that an interrupted evaluation has written.

    Raises:
        ConfigError: where they belong to other problems.
    """
    file = folder.results(eval_set)
    results = file.read()
    if len(results) > len(problems) or not all(r.is_about(p) for r, p in zip(results, problems, strict=False)):
        raise ConfigError(
            f"resume=true: {file.path} holds results of other problems than data.evaluation.{eval_set} has now; "
            "start without resume"
        )
    return results


def evaluate_set(job: Job, name: str) -> list[ProblemResult]:
    """Results of all problems of an evaluation set: those of an earlier run, and the rest, written out as they come."""
    problems, results, file = job.eval_sets[name], list(job.kept[name]), job.folder.results(name)
    if results:
        log.info("%s: %d of %d problems were evaluated before", name, len(results), len(problems))
    with (
        counted_progress(name, "problems", len(problems), len(results)) as advance,
        mixed_precision(job.precision, job.device),
    ):
        sampling = dataclasses.replace(job.sampling, keep_states=False)  # nothing here reads them
        for batch in evaluate(job.policy.model, job.stage, problems, sampling, job.config, start=len(results)):
            file.append(batch.results)
            results += batch.results
            advance(len(batch.results))
    return results


def log_set(tracker: Tracker, name: str, results: list[ProblemResult], metrics: dict[str, float]) -> None:
    """Metrics at step 0, and two tables: every completion, and every metric with its interval."""
    tracker.write_metrics({f"eval/{name}/{key}": value for key, value in metrics.items()}, 0)
    tracker.write_table(f"completions/{name}.json", completions_table(results))
    keys = [key for key in metrics if not key.endswith(("_low", "_high"))]
    ends = {end: [metrics.get(f"{key}_{end}") for key in keys] for end in ("low", "high")}
    tracker.write_table(f"metrics/{name}.json", {"metric": keys, "value": [metrics[key] for key in keys], **ends})


def warn_of_cut_off(name: str, truncated: float, max_new_tokens: int) -> None:
    if truncated >= MANY_CUT_OFF:
        log.warning(
            "%s: %.0f %% of the completions were cut off at rollout.max_new_tokens=%d, and the accuracy is of what they had "
            "said by then; with a higher limit it may be another",
            name,
            100 * truncated,
            max_new_tokens,
        )


def report(cfg: DictConfig, job: Job, metrics: Mapping[str, dict[str, float]]) -> None:
    console = Console(markup=False)
    accuracy_table(metrics, {name: len(problems) for name, problems in job.eval_sets.items()}).print(console)
    levels = level_table(metrics)
    if levels.rows:
        levels.print(console)
    console.print(f"results: {job.folder.path / 'results'}", soft_wrap=True)
    if cfg.logger is not None:
        console.print(f"compare runs: mlflow ui --backend-store-uri {without_users(cfg.logger.tracking_uri)}", soft_wrap=True)
