"""task=score: the configured scorer and gate over recorded completions; nothing is sampled, trained or sent to MLflow."""

from __future__ import annotations

import contextlib
import gzip
import io
import itertools
import json
import logging
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TextIO

from hydra.core.hydra_config import HydraConfig
from hydra.utils import instantiate
from omegaconf import DictConfig
from rich.console import Console

from oar_lightning.answers.reward import check_accuracy
from oar_lightning.common.config_check import ConfigError
from oar_lightning.common.outputs import new_file
from oar_lightning.common.progress import counted_progress
from oar_lightning.common.tables import ConsoleTable
from oar_lightning.credit.scorers import Uniform, as_scorer
from oar_lightning.credit.scorers.oracle import check_known
from oar_lightning.inspection.by_problem import check_by_problem
from oar_lightning.inspection.completion_scores import (
    CompletionScorer,
    ScoreConfig,
    ScoredCompletion,
    ScoreSummary,
)
from oar_lightning.inspection.credit_trial import needs_trial, try_credit
from oar_lightning.inspection.heatmap import render_heatmap
from oar_lightning.inspection.recorded import RecordedCompletion, read_recorded
from oar_lightning.rollout import build_stage
from oar_lightning.wiring.device import choose_device, mixed_precision, seed_everything, set_threads
from oar_lightning.wiring.one_process import check_one_process
from oar_lightning.wiring.policy import load_policy

log = logging.getLogger(__name__)


def prepare(cfg: DictConfig) -> Callable[[], float | None]:
    """Check, read the completions and load the policy. Of the data preset only the prompt is read."""
    check_one_process(cfg)
    config: ScoreConfig = instantiate(cfg.score, _convert_="all")
    if not config.files:
        raise ConfigError("score.files is empty: name the JSONL files of the completions, e.g. score.files=[outputs.jsonl]")
    if cfg.resume or cfg.ckpt_path is not None:
        raise ConfigError("task=score does not resume: leave out resume and ckpt_path; the policy is set by policy.name")
    own = Path(HydraConfig.get().runtime.output_dir) / "scores.jsonl.gz"
    output = new_file(config.output or str(own), "score.output")
    assert output is not None
    if config.heatmaps and (old := sorted(output.parent.glob(heatmap_path(output, "*").name))):
        raise ConfigError(
            f"score.output={output} would leave heat-maps among those of another one ({old[0].name}); choose another name, or "
            "remove them"
        )
    spec, rewards, scorer = instantiate(cfg.policy), instantiate(cfg.reward, _convert_="all"), instantiate(cfg.scorer)
    gate, advantage, answer = instantiate(cfg.gate), instantiate(cfg.advantage), instantiate(cfg.answer, _convert_="all")
    sampling, engine = instantiate(cfg.rollout), instantiate(cfg.engine)
    engine.check(sampling)
    check_by_problem(advantage, "score")
    check_accuracy(rewards)
    dropped: Counter[str] = Counter()
    recorded = list(itertools.islice(read_recorded(config.files, dropped), config.limit))
    if not recorded:
        raise ConfigError(f"score.files={config.files}: no usable row ({dict(dropped) or 'the files are empty'})")
    rewards.try_out([r.problem for r in recorded if r.problem.answer])
    scorer = as_scorer(scorer)
    check_known(scorer, {r.problem.question: r.problem for r in recorded}.values(), "score.files")
    set_threads(cfg.num_threads)
    seed_everything(cfg.seed)
    device = choose_device(str(cfg.trainer.accelerator))
    policy = load_policy(spec, str(cfg.task), device, cfg.trainer.get("precision"))
    stage = build_stage(policy, instantiate(cfg.data.prompt, tokenizer=policy.tokenizer), answer, rewards, engine)
    stage.prompt.render(recorded[0].problem)  # a missing chat template fails here, before long work
    if isinstance(scorer, Uniform):
        log.warning("scorer=uniform gives every token importance 0 and weight 1; set another, e.g. scorer=oar_g")
    completion_scorer = CompletionScorer(policy, stage, scorer, gate, advantage, sampling, config, dropped)
    if needs_trial(scorer, gate):
        try_credit(scorer, gate, policy, completion_scorer.gold_only_stage, recorded[0].problem)
    precision = mixed_precision(cfg.trainer.get("precision"), device)
    return lambda: run(completion_scorer, recorded, output, precision)


def run(
    scorer: CompletionScorer,
    recorded: Sequence[RecordedCompletion],
    output: Path,
    precision: contextlib.AbstractContextManager[None],
) -> None:
    """Write the scores problem by problem and the first problems' heat-maps, then print what they amount to."""
    summary = ScoreSummary()
    pages = 0
    try:
        with opened(output) as file, counted_progress("scoring", "completions", len(recorded)) as advance, precision:
            for window in scorer(recorded, advance):
                for group in window:
                    file.writelines(json.dumps(scored.to_json(), ensure_ascii=False) + "\n" for scored in group)
                    for scored in group:
                        summary.add(scored)
                file.flush()
                for group in window[: max(0, scorer.config.heatmaps - pages)]:
                    pages += 1
                    write_heatmap(scorer, group, output, pages)
    except KeyboardInterrupt:
        if summary.completions:
            report(scorer, summary, output, pages)
            log.warning("stopped; %s holds the %d completions scored so far", output, summary.completions)
        else:
            log.warning("stopped before anything was scored; nothing is kept")
        sys.exit(130)
    if not summary.completions:
        output.unlink()
        raise ConfigError(
            f"score.files: no row could be scored, all were left out: {dict(scorer.skipped)}; what is too long takes a larger "
            "score.max_tokens"
        )
    report(scorer, summary, output, pages)


@contextlib.contextmanager
def opened(output: Path) -> Iterator[TextIO]:
    """The output file, opened for text; compressed where its name ends with .gz. An error before the first line leaves none."""
    output.parent.mkdir(parents=True, exist_ok=True)
    with output.open("xb") as raw:
        packed = gzip.GzipFile("", "wb", fileobj=raw, mtime=0) if output.suffix == ".gz" else raw
        with io.TextIOWrapper(packed, encoding="utf-8", newline="\n") as file:
            try:
                yield file
            except BaseException:  # Ctrl-C, too
                if not file.tell():  # an empty file would refuse the same command
                    output.unlink()
                raise


def write_heatmap(scorer: CompletionScorer, group: Sequence[ScoredCompletion], output: Path, number: int) -> None:
    problem = group[0].recorded.problem
    title = f"{scorer.scorer.name} on {problem.id}"
    page = render_heatmap(title, problem.question, problem.answer or "none", [scored.shown for scored in group])
    heatmap_path(output, number).write_text(page, encoding="utf-8")


def heatmap_path(output: Path, number: int | str) -> Path:
    return output.with_name(f"{output.name.removesuffix('.gz').removesuffix('.jsonl')}_heatmap_{number}.html")


def report(scorer: CompletionScorer, summary: ScoreSummary, output: Path, pages: int) -> None:
    """Print the summary. What was left out is logged too."""
    if scorer.skipped:
        log.warning("score.files: left out %s", dict(scorer.skipped))
    if summary.changed:
        log.warning("the tokenizer changed the text of %d completions (special tokens, unknown characters)", summary.changed)
    console = Console(markup=False)
    table(scorer.scorer.name, summary, scorer.skipped).print(console)
    console.print(f"scores: {output}", soft_wrap=True)
    if pages:
        console.print(f"heat-maps: {heatmap_path(output, 1)}" + (f" to {pages}" if pages > 1 else ""), soft_wrap=True)


def table(scorer: str, summary: ScoreSummary, skipped: Mapping[str, int]) -> ConsoleTable:
    rows = [*summary.rows(), *((reason, str(count)) for reason, count in skipped.items())]
    return ConsoleTable(f"Recorded completions under {scorer}", ("what", "value"), rows)
