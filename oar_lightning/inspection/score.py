"""Credit of given texts in one call, and its heat-map in a notebook."""

from __future__ import annotations

import html
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from torch import Tensor

from oar_lightning.answers.reward import Accuracy, Rewards, check_accuracy
from oar_lightning.answers.span import AnswerFormat
from oar_lightning.credit.gates import BilevelGate, Gate
from oar_lightning.credit.scorers import OarG, Scorer, as_scorer
from oar_lightning.data.prompts import PlainPrompt, PromptTemplate
from oar_lightning.inspection.completion_scores import CompletionScorer, ScoreConfig, ScoredCompletion
from oar_lightning.inspection.heatmap import render_heatmap
from oar_lightning.inspection.recorded import RecordedCompletion
from oar_lightning.objective.advantage import AdvantageConfig
from oar_lightning.policy.lm_head import check_head
from oar_lightning.policy.pretrained import Policy, PretrainedPolicy
from oar_lightning.rollout import SamplingConfig, build_stage
from oar_lightning.types import MathProblem, Rollouts


def score(
    policy: Policy | PretrainedPolicy | str,
    problem: MathProblem,
    completions: Sequence[str],
    scorer: Scorer | Callable[[Any, Rollouts], Tensor] | None = None,
    gate: Gate = BilevelGate(),
    *,
    prompt: Callable[..., PromptTemplate] = PlainPrompt,
    answer: AnswerFormat = AnswerFormat(),
    rewards: Rewards | None = None,
    batch: int = 16,
) -> list[ScoredCompletion]:
    """Judge and score a problem's completions, as `task=score` does; advantages are relative to these completions.

    Args:
        policy: a loaded policy, the settings of one, or the name of one.
        problem: question and gold answer; without a gold answer (empty) there is credit, but no verdict.
        completions: texts, each of them whole.
        scorer: who gets the credit; None for OAR-G. A plain function (model, rollouts) -> importance [B S] will do.
        gate: importance -> token weights.
        prompt: makes the prompt template, given the policy's `tokenizer`.
        answer: where a completion states its final answer.
        rewards: None for the accuracy alone.
        batch: completions scored at once; bounds memory, and changes the numbers by rounding alone.

    Returns:
        One entry a completion, in order. `shown.tokens` holds text, score and weight of each token.

    Raises:
        TypeError: for a problem that is no `MathProblem`.
        ValueError: without completions, for one that is longer than the policy can read, and for a scorer and a gate that do
            not fit together.
    """
    if not isinstance(problem, MathProblem):
        raise TypeError(f"problem must be a MathProblem, e.g. MathProblem(question, answer), got {problem!r}")
    if isinstance(completions, str) or not completions:
        raise ValueError(f"completions must be a list of at least one text, got {completions!r}")
    if isinstance(policy, str):
        policy = PretrainedPolicy(policy)
    loaded = policy if isinstance(policy, Policy) else policy.load()
    check_head(loaded.model)
    rewards = rewards or Rewards({"accuracy": Accuracy()})
    check_accuracy(rewards)
    stage = build_stage(loaded, prompt(tokenizer=loaded.tokenizer), answer, rewards)
    config = ScoreConfig(batch=batch)
    work = CompletionScorer(loaded, stage, as_scorer(scorer or OarG()), gate, AdvantageConfig(), SamplingConfig(), config)
    recorded = [RecordedCompletion(str(number), problem, text) for number, text in enumerate(completions, 1)]
    scored = [one for window in work(recorded, lambda count: None) for group in window for one in group]
    if work.skipped:
        raise ValueError(f"of {len(completions)} completions some cannot be scored: {dict(work.skipped)}; leave them out")
    return scored


class Heatmap:
    """A heat-map page. A notebook shows it where it is the last value of a cell."""

    def __init__(self, page: str, height: int) -> None:
        self.page = page
        self.height = height

    def save(self, path: str | Path) -> None:
        Path(path).expanduser().write_text(self.page, encoding="utf-8")

    def _repr_html_(self) -> str:
        # a frame of its own: the page's styles and script neither reach the notebook nor hear of it
        frame = f'style="width:100%;height:{self.height}px;border:0" sandbox="allow-scripts"'
        return f'<iframe title="heat-map" {frame} srcdoc="{html.escape(self.page, quote=True)}"></iframe>'


def heatmap(scored: Sequence[ScoredCompletion], title: str = "Credit", height: int = 600) -> Heatmap:
    """The heat-map of one problem's completions; `height` in pixels is that of the frame in a notebook.

    Raises:
        ValueError: without completions, or for those of several problems.
    """
    problems = list(dict.fromkeys(one.recorded.problem for one in scored))
    if len(problems) != 1:
        raise ValueError(f"a heat-map shows the completions of one problem, got those of {len(problems)}")
    page = render_heatmap(title, problems[0].question, problems[0].answer or "none", [one.shown for one in scored])
    return Heatmap(page, height)
