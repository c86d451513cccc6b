"""task=train (RL) and task=warm_start (supervised): build -> fit -> export -> report."""

from __future__ import annotations

import json
import logging
import shlex
import signal
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig
from rich.console import Console
from torch import Tensor

from oar_lightning.common.credentials import without_users
from oar_lightning.distributed.launch import by_srun, is_restart
from oar_lightning.distributed.rank_launcher import end_other_ranks, killed_rank, report_lost_ranks
from oar_lightning.distributed.slurm import TOLD_TO_END, requeue
from oar_lightning.distributed.strategies import adapt
from oar_lightning.evaluation.tables import before_after_table
from oar_lightning.policy.out_of_memory import OutOfMemory, advice, out_of_memory
from oar_lightning.policy.pretrained import Policy, export_policy, has_adapters
from oar_lightning.sweep.process import describe_exit
from oar_lightning.sweep.trial import Result, current_ticket, job_folder, write_result
from oar_lightning.training.callbacks.checkpoint import CHECKPOINTS, LAST
from oar_lightning.training.callbacks.errors import first_error, forget_errors
from oar_lightning.training.callbacks.goes_on import forget_goes_on
from oar_lightning.wiring.auto_budgets import set_start_from_plan
from oar_lightning.wiring.claim import claim, claim_and
from oar_lightning.wiring.config import plain
from oar_lightning.wiring.datasets import datasets
from oar_lightning.wiring.device import seed_everything, set_threads
from oar_lightning.wiring.kept_config import CONFIG, PROBLEMS, kept_problems
from oar_lightning.wiring.kept_policy import POLICY, Digests, check_policy_kept, compared, digests_of
from oar_lightning.wiring.library_settings import check_optimizer, try_trainer
from oar_lightning.wiring.lightning_options import development_run
from oar_lightning.wiring.model_card import write_run_card
from oar_lightning.wiring.policy import bare_policy, export_folder
from oar_lightning.wiring.resume import check_layout, forget_finished, mark_finished, read_saved
from oar_lightning.wiring.run import Run, build_run
from oar_lightning.wiring.run_folder import logged, note_origin
from oar_lightning.wiring.run_tags import note_run, run_parameters, run_tags
from oar_lightning.wiring.settings import build_settings
from oar_lightning.wiring.start import Start, find_start
from oar_lightning.wiring.sweep_problems import check_problems_of_sweep
from oar_lightning.wiring.trained_weights import put_weights

log = logging.getLogger(__name__)


def prepare(cfg: DictConfig) -> Callable[[], float | None]:
    cfg = development_run(cfg)
    settings = build_settings(cfg)
    check_optimizer(cfg)
    try_trainer(cfg)
    problems = kept_problems(settings)
    start = find_start(cfg, problems)
    if start.complete:
        log.info("the run in %s is complete, nothing is left to do", start.run_dir)
        return lambda: None
    set_threads(cfg.num_threads)
    seed_everything(cfg.seed)
    check_problems_of_sweep(plain(cfg), problems)
    claim(start.run_dir, make=False)
    if not is_restart():
        forget_goes_on(Path(HydraConfig.get().runtime.output_dir))
    export_folder(cfg, start.run_dir)
    job = build_run(cfg, settings, start)
    if start.saved is not None:
        check_layout(start.saved, adapt(job.trainer).layout)
    began_with = digests_of(job.policy, job.reference)
    if (kept_in := start.same_policy_in) is not None:
        check_policy_kept(kept_in, began_with, compared(job.policy, start.begun and not start.changes))
    set_start_from_plan(cfg, job)

    def begin() -> None:
        start.check_unchanged()
        job.tracker.start()

    claim_and(start.run_dir, begin)
    return lambda: fit(cfg, job, start, problems, began_with)


def fit(cfg: DictConfig, job: Run, start: Start, problems: Mapping[str, str], began_with: Digests) -> float | None:
    """Train, continuing a checkpoint where given; returns the sampled accuracy on the first evaluation set."""
    run_dir, saved = start.run_dir, start.saved
    try:
        if saved is not None:
            log.info("continuing %s%s", saved.checkpoint, " as a new run" if start.changes else "")
        elif start.begun:
            log.info("starting %s again, which ended before its first checkpoint", run_dir)
        if start.resumed:
            job.tracker.reopen(start.kept_step)
            if job.trainer.is_global_zero:
                forget_finished(run_dir, start.step)
        note_run(job.tracker)
        size = str(sum(p.numel() for p in job.policy.model.parameters()))
        job.tracker.describe(run_parameters(cfg), {**run_tags(cfg), "parameters": size})
        job.tracker.write_datasets(datasets(cfg, job.datamodule.train, job.evaluation.eval_sets))
        # before the config, which says that the run has begun: what ended before then begins as a new run
        note_origin(job.tracker, HydraConfig.get().overrides.task, job.problems, start.resumed, start.parent())
        job.tracker.write_text(CONFIG, logged(cfg))
        job.tracker.write_text(PROBLEMS, json.dumps(problems, indent=1))
        if not start.resumed or not (run_dir / "artifacts" / POLICY).exists():
            job.tracker.write_text(POLICY, json.dumps(dict(began_with), indent=1))
        log.info("run folder: %s", run_dir)
        forget_errors(run_dir)
        report_lost_ranks(job.trainer, lambda: on_rank_lost(job, run_dir))
        job.fit(None if saved is None else str(saved.checkpoint))
        return finish(cfg, job, run_dir)
    except BaseException as error:
        close(job, "FAILED" if isinstance(error, Exception) else "KILLED")
        failed = failed_rank(job, run_dir) if isinstance(error, Exception) else None
        end_other_ranks(job.trainer)
        if failed:
            raise RuntimeError(failed) from error
        if out_of_memory(error) and not isinstance(error, OutOfMemory):
            raise OutOfMemory(advice(error, job.module.memory_bounds)) from error
        raise


def close(job: Run, status: str) -> None:
    """Close a run that has not come to its end: what it has cost is told all the same. Later calls do nothing."""
    seconds = job.seconds.totals()
    if seconds["time/total_s"] and not job.tracker.is_closed:  # 0: failed before training; a resumed run has told its seconds
        job.tracker.write_metrics(seconds, job.trainer.global_step)
    job.tracker.close(status)


def on_rank_lost(job: Run, run_dir: Path) -> None:
    """Log and record that another rank has died while this one waits for it."""
    log.error("%s", failed_rank(job, run_dir) or "another rank has ended without an error")
    close(job, "FAILED")


def failed_rank(job: Run, run_dir: Path) -> str | None:
    """Which other rank failed first, and how; None if none is known."""
    first, own = first_error(run_dir), job.trainer.global_rank
    if first is not None and first.rank != own:
        return f"rank {first.rank} failed first: {first.what}"
    killed = killed_rank(job.trainer)
    return None if killed is None else f"rank {killed[0]} failed first: {describe_exit(killed[1])}"


def finish(cfg: DictConfig, job: Run, run_dir: Path) -> float | None:
    """Export the policy, print the table; after a signal say how to go on and exit with its code."""
    if cfg.trainer.get("fast_dev_run"):
        job.tracker.close("FINISHED")
        report(cfg, job, None)
        return final_metrics(job)["objective"]
    told_to_end = job.stop.received in TOLD_TO_END
    in_queue = told_to_end and by_srun() and job_folder() is None
    # after SIGTERM Slurm leaves no time to finish; the job that it starts again does that
    no_time = in_queue and job.stop.received == signal.SIGTERM
    if job.stop.received is not None and (no_time or job.trainer.global_step < job.trainer.max_steps):
        close(job, "KILLED")
        log.warning("stopped at step %d%s", job.trainer.global_step, how_to_go_on(run_dir))
        if not job.trainer.is_global_zero:
            sys.exit(0)  # 0, since rank 0 is still at work and would take another code for a failure
        if in_queue:
            requeue()
        sys.exit(128 + (signal.SIGTERM if told_to_end else signal.SIGINT))
    folder = export_folder(cfg, run_dir)
    if job.trainer.is_global_zero:
        policy, weights = trained_policy(cfg, job, run_dir)
        export_policy(policy.model, policy.tokenizer, folder, weights)
        write_run_card(folder, run_dir, job.trainer.global_step, job.evaluation.history)
    metrics = final_metrics(job)
    job.tracker.write_metrics(metrics, job.trainer.global_step)
    state = {"trial_state": "complete"} if current_ticket() else {}
    job.tracker.register(folder, job.trainer.global_step)
    job.tracker.describe({}, {"final_model": str(folder.resolve()), **state})
    job.tracker.close("FINISHED")
    if (own := job_folder()) is not None and job.trainer.is_global_zero:
        write_result(own, Result("complete", metrics))  # before it is finished: of a finished run nothing is done again
    if job.trainer.is_global_zero:
        mark_finished(run_dir, job.trainer.global_step, job.trainer.max_steps)
    report(cfg, job, folder)
    return metrics["objective"]


def how_to_go_on(run_dir: Path) -> str:
    """The advice of a run that was stopped. A sweep says by itself how it goes on."""
    if current_ticket() is not None:
        return ""
    if job_folder() is not None:  # of a grid, whose jobs resume=true does not find
        own = shlex.join([*HydraConfig.get().overrides.task, f"ckpt_path={run_dir}"])
        return f"; to go on with this job of the grid: python -m oar_lightning {own}"
    return f"; to go on, repeat the command with resume=true, or ckpt_path={run_dir}"


def trained_policy(cfg: DictConfig, job: Run, run_dir: Path) -> tuple[Policy, dict[str, Tensor] | None]:
    """The policy after training, and its weights where it does not hold them itself, but each rank a part."""
    policy, weights = job.policy, job.weights.state
    if not adapt(job.trainer).shards_weights:
        return policy, None
    if weights is not None and not has_adapters(policy.model):  # adapters cannot be merged where each rank holds a part
        return policy, weights
    whole = bare_policy(cfg)
    if weights is not None:
        whole.model.load_state_dict(weights)
    else:  # started again after its last step: nothing was trained, and so nothing gathered
        put_weights(whole, read_saved(run_dir / CHECKPOINTS / LAST))
    return whole, None


def final_metrics(job: Run) -> dict[str, float]:
    """What runs are compared by: the sampled accuracy on the first evaluation set with its interval, and seconds."""
    evaluation = job.evaluation
    last = evaluation.first_and_last(next(iter(evaluation.eval_sets)))[1]
    name = evaluation.accuracy
    found = {"objective": last[name], "objective_low": last[f"{name}_low"], "objective_high": last[f"{name}_high"]}
    return found | job.seconds.totals()


def report(cfg: DictConfig, job: Run, folder: Path | None) -> None:
    """Print accuracies before and after and how to see more. `folder`: of the policy; None where it was not kept."""
    names = list(job.evaluation.eval_sets)
    table = before_after_table({name: job.evaluation.first_and_last(name) for name in names})
    if job.trainer.is_global_zero:
        console = Console(markup=False)
        table.print(console)
        tried = f"trainer.fast_dev_run={cfg.trainer.fast_dev_run}"
        kept = folder or f"not kept, nor a checkpoint ({tried}); the run's folder has the log and artifacts"
        console.print(f"policy: {kept}", soft_wrap=True)
        if cfg.logger is not None:
            console.print(
                f"compare runs: mlflow ui --backend-store-uri {without_users(cfg.logger.tracking_uri)}", soft_wrap=True
            )
