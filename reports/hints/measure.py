"""Does a policy read hints, and does what they change find the wrong step? The tables of README.md.

python reports/hints/measure.py --read graph_hints   # what a policy answers with and without hints -> read.json
python reports/hints/measure.py --lab graph_hints    # the lab of a policy -> its .json
python reports/hints/measure.py                       # the tables alone
"""

from __future__ import annotations

import argparse
import json
import random
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch

from oar_lightning.answers.reward import Accuracy, Rewards
from oar_lightning.answers.span import AnswerFormat, gold_answer
from oar_lightning.common.bootstrap import bootstrap_bounds
from oar_lightning.common.markdown import fill, markdown
from oar_lightning.common.randomness import derive_seed
from oar_lightning.data.chain.task import ChainTask
from oar_lightning.data.generated import GeneratedProblems, GeneratedTask
from oar_lightning.data.graph.task import GraphTask
from oar_lightning.data.hints import hinted, telling, telling_solution, telling_wrong
from oar_lightning.data.prompts import PlainPrompt
from oar_lightning.lab.study import estimator, lab_results, run_asked, without
from oar_lightning.policy.pretrained import PretrainedPolicy
from oar_lightning.rollout import SamplingConfig
from oar_lightning.rollout.build import build_stage
from oar_lightning.types import MathProblem

HERE = Path(__file__).parent
PROBLEMS, SAMPLES = 64, 4


class Subject(NamedTuple):
    """A policy and its task, with the settings of the command line that choose both."""

    policy: str
    task: GeneratedTask
    tokens: int
    settings: tuple[str, ...] = ()


GRAPH = (
    GraphTask(asides=3, wrong_operator=0.42, misconceptions=0.5, wrong_operand=0.05, needless=0.05),
    200,
    ("+variant=graph",),
)
"""As the variant has it, which a test holds."""
SUBJECTS = {
    "hinted": Subject("outputs/chain_hinted", ChainTask(), 80),
    "chain": Subject("chain", ChainTask(), 80),
    "graph_hints": Subject("graph_hints", *GRAPH),
    "graph": Subject("graph", *GRAPH),
}
"""By name here."""

Told = tuple[str, str]
Draw = Callable[[GeneratedTask, Any, MathProblem, random.Random], Told | None]
"""(task, problem, its text, randomness) -> the hint and the answer that it tells of; None where there is no such hint."""


def _wrong(gold: str, rng: random.Random) -> str:
    return str(abs(int(gold) + rng.choice((-1, 1))))


def _told(answer: str) -> Told:
    return telling(answer), answer


def _solution(task: GeneratedTask, problem: Any, wrong: bool, rng: random.Random) -> Told | None:
    texts = (task.solution(problem, rng).text for _ in range(1000))
    found = ((telling_solution(t), str(gold_answer(t))) for t in texts if (gold_answer(t) != str(problem.answer)) == wrong)
    return next(found, None)


HINTS: dict[str, Draw] = {
    "nothing": lambda task, problem, text, rng: ("", text.answer),
    "the gold answer": lambda task, problem, text, rng: _told(text.answer),
    "an answer that is off by one": lambda task, problem, text, rng: _told(_wrong(text.answer, rng)),
    "a right solution": lambda task, problem, text, rng: _solution(task, problem, False, rng),
    "a wrong solution": lambda task, problem, text, rng: _solution(task, problem, True, rng),
    "that the gold answer is wrong": lambda task, problem, text, rng: (telling_wrong(text.answer), text.answer),
}


class Read(NamedTuple):
    """Shares of the completions: right; with the answer that the hint tells of. Each with its interval."""

    right: tuple[float, float, float]
    told: tuple[float, float, float]
    greedy_right: float
    greedy_told: float


def interval_of(shares: torch.Tensor) -> tuple[float, float, float]:
    """The mean over problems, with its interval."""
    low, high = bootstrap_bounds(shares.numpy(), draws=2000)
    return float(shares.mean()), float(low), float(high)


def read(subject: Subject, draw: Draw) -> Read:
    """What a policy answers on held-out problems with a hint."""
    policy = PretrainedPolicy(subject.policy).load()
    stage = build_stage(policy, PlainPrompt(), AnswerFormat(), Rewards({"accuracy": Accuracy()}))
    task = subject.task
    source = GeneratedProblems(task, "held_out", seed=7)
    problems, answers = [], []
    for index in range(PROBLEMS):
        rng = random.Random(f"7/held_out/{index}")
        problem = task.problem(random.Random(f"{source.seed}/{source.split}/{index}"), held_out=True)
        assert problem.question == source[index].question
        told = draw(task, problem, source[index], rng)
        if told is not None:
            problems.append(hinted(source[index], told[0]))
            answers.append(told[1])
    shares = {}
    for temperature, samples in ((1.0, SAMPLES), (0.0, 1)):
        sampling = SamplingConfig(subject.tokens, temperature=temperature, max_batch=256)
        seeds = [derive_seed(0, "hints", i) for i in range(len(problems))]
        with torch.no_grad():
            rollouts = stage(policy.model, tuple(problems), samples, sampling, seeds, 0)
        found = [a or "" for a in rollouts.answers]
        for key, wanted in (("right", [p.answer for p in problems]), ("told", answers)):
            same = torch.tensor([found[i] == wanted[i // samples] for i in range(len(found))]).float()
            shares[key, samples] = same.view(-1, samples).mean(1)
    interval = {k: interval_of(s) for k, s in shares.items()}
    return Read(interval["right", SAMPLES], interval["told", SAMPLES], interval["right", 1][0], interval["told", 1][0])


def read_into_json(name: str) -> None:
    torch.set_num_threads(1)
    found = kept("read") or {}
    found[name] = {hint: read(SUBJECTS[name], draw)._asdict() for hint, draw in HINTS.items()}
    (HERE / "read.json").write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


ESTIMATORS = [
    *estimator("rlsd_answer", "rlsd"),
    *estimator("rlsd_correct_sibling", "rlsd", of_scorer={"hint": "correct_sibling"}),
    *estimator("rlsd_feedback", "rlsd", of_scorer={"hint": "feedback"}),
    *estimator("contrast", "contrast", of_scorer={"weights": "true"}),
]
LEFT_OUT = ("early", "oar_p", "information_gain", "total_effect", "total_effect_fast")
SETTINGS = [
    "lab.problems=64",
    "lab.samples=4",
    "lab.continuations=0",
    "lab.faithfulness=null",
    "lab.stability=null",
    "lab.gradients=null",
    "lab.baseline=improbability",
    *without(*LEFT_OUT),
    *ESTIMATORS,
]
MEASURES = {
    "first_error.auroc": "AUROC of the first error",
    "first_error.hit_1": "top token is the first error",
    "first_error.right_step": "top token is in the first wrong step",
}


def run_lab(name: str, *more: str) -> None:
    subject = SUBJECTS[name]
    found = lab_results(*subject.settings, f"policy.name={subject.policy}", *SETTINGS, *more)
    found = {
        "completions": found["truths"]["first_error"]["completions"],
        "means": {key: found["measures"][key]["means"] for key in MEASURES},
        "differences": [d for d in found["differences"] if d["measure"] in MEASURES],
    }
    (HERE / f"{name}.json").write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


def percent(value: float) -> str:
    return f"{100 * value:.0f} %"


def read_table(found: dict[str, Any]) -> str:
    lines = [["policy", "told", "right", "right, greedy", "answers what is told", "the same, greedy"]]
    for name, rows in found.items():
        for hint, row in rows.items():
            right, told = (f"{percent(m)} [{100 * a:.0f}, {100 * b:.0f}]" for m, a, b in (row["right"], row["told"]))
            pair = ["", ""] if hint == "nothing" else [told, percent(row["greedy_told"])]
            lines.append([f"`{name}`", hint, right, percent(row["greedy_right"]), *pair])
    return markdown(lines)


def lab_table(found: dict[str, Any]) -> str:
    lines = [["estimator", *MEASURES.values()]]
    starred = {(d["measure"], d["estimator"]) for d in found["differences"] if (d["p_holm"] or 1) < 0.05}
    for name in next(iter(found["means"].values())):
        cells = []
        for key, values in found["means"].items():
            i = values[name]
            cells.append(f"{i['mean']:.2f} [{i['low']:.2f}, {i['high']:.2f}]{' *' if (key, name) in starred else ''}")
        lines.append([name, *cells])
    return f"{found['completions']} wrong completions.\n\n{markdown(lines)}"


def kept(name: str) -> dict[str, Any] | None:
    """What was measured; None where it was not yet."""
    path = HERE / f"{name}.json"
    found: dict[str, Any] | None = json.loads(path.read_text(encoding="utf-8")) if path.exists() else None
    return found


def page() -> str:
    parts = []
    if (found := kept("read")) is not None:
        parts += ["## What is answered", read_table(found)]
    for name in SUBJECTS:
        if (found := kept(name)) is not None:
            parts += [f"## Wrong completions of `{name}`", lab_table(found)]
    return "\n\n".join(parts)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--read"]:
        parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
        parser.add_argument("--read", choices=SUBJECTS, required=True)
        read_into_json(parser.parse_args().read)
    else:
        run_asked(__doc__, SUBJECTS, run_lab)
    fill(HERE / "README.md", page())
