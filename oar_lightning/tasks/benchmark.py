"""task=benchmark: seconds, memory and work of each phase of a step, method by method; table, JSON, page, MLflow."""

from __future__ import annotations

import dataclasses
import json
import logging
import platform
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from hydra.core.hydra_config import HydraConfig
from hydra.utils import instantiate
from omegaconf import DictConfig
from rich.console import Console

from oar_lightning.answers.reward import Accuracy, Rewards
from oar_lightning.benchmark import BenchmarkConfig, ConfiguredWorkload, Measurement, RandomWorkload, Workload, measure, rounds
from oar_lightning.benchmark.report import TITLE, phase_table, quietness, scoring_table, write_report
from oar_lightning.common.config_check import ConfigError
from oar_lightning.common.outputs import output_path, page_folder, write_text
from oar_lightning.common.progress import counted_progress
from oar_lightning.common.tables import ConsoleTable
from oar_lightning.credit.fit import usual_gate
from oar_lightning.credit.scorers import as_scorer
from oar_lightning.data.stream import ProblemStream
from oar_lightning.rollout import AutoEngineConfig, build_stage, longest_prompt
from oar_lightning.tracking.tracker import Tracker
from oar_lightning.training.module import PolicyOptimization
from oar_lightning.training.run import keep_rule
from oar_lightning.training.settings import Settings
from oar_lightning.wiring.device import choose_device, mixed_precision, seed_everything, set_threads
from oar_lightning.wiring.kept_config import refuse_another_task
from oar_lightning.wiring.one_process import asks_for_several
from oar_lightning.wiring.policy import load_policy
from oar_lightning.wiring.run import build_logger, build_others
from oar_lightning.wiring.run_tags import run_parameters, run_tags, this_command
from oar_lightning.wiring.settings import build_settings

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class _RewardsOnly:
    """Stands in for a rollout stage where completions are random tokens."""

    rewards: Rewards


def prepare(cfg: DictConfig) -> Callable[[], None]:
    config: BenchmarkConfig = instantiate(cfg.benchmark, _convert_="all")
    settings = build_settings(cfg)
    set_threads(cfg.num_threads)
    seed_everything(cfg.seed)
    device = choose_device(str(cfg.trainer.accelerator))
    folder = page_folder(config.report, "benchmark.report", TITLE) if config.report else None
    files = output_path(config.output, "benchmark.output"), folder
    check_timed(cfg, settings)
    workload: Workload
    stage: Any
    if config.shape is None:
        assert settings.train is not None, "refused before"
        precision = cfg.trainer.get("precision")
        policy = load_policy(settings.policy, str(cfg.task), device, precision, trained=True)
        prompt = instantiate(cfg.data.prompt, tokenizer=policy.tokenizer)
        stage = build_stage(policy, prompt, settings.answer, settings.rewards, settings.engine)
        longest = longest_prompt(policy.model, settings.method.sampling, settings.engine)
        stream = ProblemStream(settings.train, int(cfg.seed), keep=keep_rule(settings, prompt, policy.tokenizer, longest))
        plan = settings.method.update
        passes = mixed_precision(precision, device)
        workload = ConfiguredWorkload(policy, stage, stream, plan.problems, plan.group_size, settings.method.sampling, passes)
    else:
        if not isinstance(settings.engine, AutoEngineConfig):
            raise ConfigError(
                f"benchmark={config.preset} times random weights, which engine=auto samples; leave out engine, or set "
                "benchmark=tiny for the configured policy"
            )
        workload = RandomWorkload(config.shape, device)
        stage = _RewardsOnly(Rewards({"accuracy": Accuracy()}))
    modules = {}
    for name, component in config.variants.items():
        scorer, gate = as_scorer(component), settings.method.gate
        method = replace(settings.method, scorer=scorer, gate=gate if gate.signed == scorer.signed else usual_gate(scorer))
        if method.scorer.only_in_training or method.scorer.learns:
            reads = "compares the policy with" if method.scorer.only_in_training else "scores by what it has learnt from"
            raise ConfigError(
                f"benchmark.variants.{name} {reads} its past in training, which task=benchmark does not have; leave it out"
            )
        modules[name] = PolicyOptimization(workload.policy, stage, method, settings.optimizer, settings.schedule, 0).train()
    run_dir = Path(HydraConfig.get().runtime.output_dir)
    refuse_another_task(run_dir, str(cfg.task))
    tracker = Tracker(run_dir, build_logger(cfg, run_dir), build_others(cfg, run_dir))
    tracker.start()
    return lambda: run(cfg, config, workload, modules, tracker, *files)


def check_timed(cfg: DictConfig, settings: Settings) -> None:
    """Raises ConfigError: for what costs time in training and is not in a step that is timed here."""
    method = settings.method
    untimed = (
        (method.loss.kl_coef, f"loss.kl_coef={method.loss.kl_coef:g} needs a frozen reference model", "loss.kl_coef=0"),
        (method.entropy.active, "entropy: its coefficient follows from the steps of a run", "entropy=none"),
        (
            method.advantage.confidence_from is not None,
            "advantage.confidence_from needs another pass, from some step of a run on",
            "advantage.confidence_from=null",
        ),
        (
            asks_for_several(cfg),
            f"trainer.devices={cfg.trainer.get('devices', 1)} and its strategy take several processes, or other ones than here",
            "trainer=cpu or trainer=gpu",
        ),
    )
    for is_set, why, remedy in untimed:
        if is_set:
            raise ConfigError(f"{why}, which task=benchmark does not time; set {remedy}")


def run(
    cfg: DictConfig,
    config: BenchmarkConfig,
    workload: Workload,
    modules: Mapping[str, PolicyOptimization],
    tracker: Tracker,
    output: Path | None,
    report: Path | None,
) -> None:
    with tracker.closing():
        tracker.describe(run_parameters(cfg), run_tags(cfg))
        total = rounds(config, workload.device) * len(modules)
        with counted_progress(f"benchmark {config.preset}", "steps", total, 0) as advance:
            measured = measure(config, workload, modules, instantiate(cfg["update"]), advance)
        console = Console(markup=False)
        for table in tables(config, measured):
            table.print(console)
        console.print(quietness(measured).replace("**", ""), soft_wrap=True)
        rows = [dataclasses.asdict(result) for result in measured.results]
        if output is not None:
            write_text(output, json.dumps(rows, indent=1) + "\n")
            console.print(f"written: {output}", soft_wrap=True)
        if report is not None:
            write_report(report, config, measured, this_command(), machine(workload))
            console.print(f"report: {report / 'README.md'}", soft_wrap=True)
        metrics = {f"benchmark/{r.variant}/{r.phase}_s": r.median_seconds for r in measured.results}
        metrics |= {f"benchmark/{r.variant}/step_ratio": r.step_ratio for r in measured.results if r.step_ratio is not None}
        metrics |= {f"benchmark/{r.variant}/step_cpu_s": r.cpu_seconds for r in measured.results if r.phase == "step"}
        tracker.write_metrics(metrics, 0)
        tracker.write_text("benchmark.json", json.dumps(rows))


def machine(workload: Workload) -> str:
    """The machine that it ran on, in words."""
    model = workload.policy.model
    device = next(model.parameters()).device
    where = torch.cuda.get_device_name(device) if device.type == "cuda" else f"{torch.get_num_threads()} threads"
    weights, products = next(model.parameters()).dtype, workload.dtype
    dtype = " weights, products in ".join(str(t).removeprefix("torch.") for t in dict.fromkeys((weights, products)))
    size = sum(p.numel() for p in model.parameters()) / 1e6
    return (
        f"{platform.system()} {platform.machine()}, {where}, {dtype}, torch {torch.__version__}, "
        f"Python {sys.version.split()[0]}; policy of {size:.2f} M parameters"
    )


def tables(config: BenchmarkConfig, measured: Measurement) -> list[ConsoleTable]:
    """Seconds of each phase, and the cost of scoring, method by method."""
    phases, scoring = phase_table(measured, config.step_bars), scoring_table(measured, config.sequence_bars)
    return [
        ConsoleTable(f"benchmark={config.preset}: seconds of each phase (medians)", phases[0], phases[1:]),
        ConsoleTable("Scoring", scoring[0], scoring[1:]),
    ]
