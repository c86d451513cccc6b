"""The claims of ../VERDICT.md: what is claimed, and what the studies' files say of it."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from leads import REPORTS, Lead, by_rate, families, lead, results_of, script, side

from oar_lightning.common.markdown import markdown
from oar_lightning.reporting.statistics import Interval, mean_interval


def many(leads: Iterable[Lead]) -> str:
    """Several leads in one cell, task by task."""
    return "; ".join(f"{one.task} {one.every:+.1f}" for one in leads)


def read_runs(study: str) -> list[dict[str, str]]:
    with (REPORTS / study / "runs.csv").open(encoding="utf-8") as file:
        return [row for row in csv.DictReader(file) if row["state"] == "complete"]


def by_seed(rows: Iterable[Mapping[str, str]], mode: str) -> dict[str, float]:
    return {row["seed"]: 100 * float(row["objective"]) for row in rows if row["gate.mode"] == mode}


def gate_parts() -> str:
    """Each part of OAR's gate against no gate."""
    rows = [row for row in read_runs("2026-11-22-gate_modes") if row["gate.renormalize"] == "true"]
    off = by_seed(rows, "off")
    texts = []
    for mode, name in (("both", "both"), ("boost_only", "boosting alone"), ("suppress_only", "suppressing alone")):
        own = by_seed(rows, mode)
        texts.append(f"{name} {mean_interval([own[seed] - off[seed] for seed in off]):+.1f}")
    return "against no gate: " + ", ".join(texts)


def tau_means() -> str:
    accuracies: dict[str, list[float]] = {}
    for row in read_runs("2026-11-22-tau_beta"):
        accuracies.setdefault(row["gate.tau"], []).append(100 * float(row["objective"]))
    said = ", ".join(
        f"{np.mean(found):.1f} at {tau}" for tau, found in sorted(accuracies.items(), key=lambda item: float(item[0]))
    )
    return f"mean accuracy over three betas and two seeds: {said}"


def concentration() -> str:
    rows = [row for row in read_runs("2026-11-21-methods") if row["optimizer.lr"] == "0.0002"]
    texts = []
    for scorer, name in (("uniform", "GRPO"), ("oar_g", "OAR-G"), ("oar_p", "OAR-P")):
        own = [row for row in rows if row["scorer"] == scorer]
        ess, top = (np.mean([float(row[f"credit/{key}"]) for row in own]) for key in ("ess_ratio", "top10_mass"))
        texts.append(f"{name} {ess:.2f} and {top:.2f}")
    return "effective share of tokens, mass of the top tenth: " + ", ".join(texts)


def rate_text(task: str, method: str) -> str:
    def one(value: Interval | float) -> str:
        return f"{value:+.1f}" + ("" if isinstance(value, Interval) else " (2 pairs or fewer)")

    return f"{task}: " + ", ".join(f"{one(value)} at {lr:g}" for lr, value in by_rate(task, method).items())


MEASURE = "gradients.same_batch/(values)"
"""The cosine of a method's policy gradient with that under Monte-Carlo values."""


def prediction(task: str) -> str:
    lab = script("lab_training")
    found = lab.predict(MEASURE, lab.measured(task)[MEASURE], lab.gains(list(lab.studied_runs(task))))
    return f"{task} {lab.shown(found)} over {found.methods} methods"


def cost_text() -> str:
    rows = json.loads((REPORTS / "benchmark_tiny" / "results.json").read_text(encoding="utf-8"))
    ratios = {row["variant"]: row["step_ratio"] for row in rows if row["phase"] == "step"}
    names = {"oar_g": "OAR-G", "oar_p_approximate": "approximate OAR-P", "oar_p": "exact OAR-P"}
    return ", ".join(f"{name} {ratios[key]:.2f}" for key, name in names.items()) + " GRPO steps"


def settled(task: str) -> tuple[str, str]:
    """Verdict and figures of the preregistered study."""
    study = script("settle", "study")
    rows = study.read_csv(REPORTS / "settle" / "runs.csv")
    ended = {arm: {r.seed: r for r in rows if (r.task, r.stage, r.arm) == (task, "endpoint", arm)} for arm in study.ENDPOINT}
    pairs = len(set.intersection(*(set(found) for found in ended.values())))
    if pairs < len(study.ENDPOINT_SEEDS):
        return "not settled yet", f"{pairs} of {len(study.ENDPOINT_SEEDS)} pairs run"
    difference, said = study.paired("oar_g", ended["oar_g"], ended[study.BASELINE])
    return said, difference


class Claim(NamedTuple):
    text: str
    verdict: str
    figures: str
    tested: str
    """Fairly, weakly or not, and on how much."""
    page: str


FIVE = "weakly: 5 pairs a task, two of which chose the rates"
SHORT = "80 updates"


def link(folder: str) -> str:
    return f"[{folder.lstrip('-0123456789')}]({folder}/README.md)"


def claims(leads: Mapping[tuple[str, str], Lead], said: Mapping[tuple[str, str], str]) -> list[Claim]:
    def over_grpo(text: str, method: str) -> Claim:
        tasks = [task for task in families.TASKS if (task, method) in leads]
        word = "; ".join(f"{task} {said[task, method]}" for task in tasks)
        return Claim(text, word, many(leads[task, method] for task in tasks), FIVE, link("families"))

    def against(text: str, method: str, over: str) -> Claim:
        found = [one for task in families.TASKS if (one := lead(results_of(task), task, method, over))]
        word = "; ".join(
            f"{one.task} {'a sign of it' if {side(one.unused), side(one.every)} == {1} else 'not shown'}" for one in found
        )
        return Claim(text, word, many(found), FIVE, link("families"))

    settle = [(task, *settled(task)) for task in ("graph", "asides")]
    return [
        over_grpo("Perfect credit beats GRPO, so that there is something to find", "oracle"),
        over_grpo("OAR-G beats GRPO (paper)", "oar_g"),
        over_grpo("OAR-P beats GRPO (paper)", "oar_p"),
        Claim(
            "OAR-G beats GRPO, by rules written before the runs",
            "; ".join(f"{task} {word}" for task, word, _ in settle),
            "; ".join(f"{task} {text}" for task, _, text in settle),
            "fairly, once run: 24 fresh pairs a task, equal tuning",
            link("settle"),
        ),
        against("OAR-P does better than OAR-G (paper: at least as well)", "oar_p", "oar_g"),
        against("OAR-G's scores do better than the same, shuffled", "oar_g", "shuffled"),
        against("OAR-G's scores do better than inverted ones", "oar_g", "inverted"),
        Claim(
            "OAR is stable for tau in 0.3 to 0.7 (paper)",
            "not contradicted",
            tau_means(),
            f"weakly: 2 seeds, {SHORT}",
            link("2026-11-22-tau_beta"),
        ),
        Claim(
            "The gate needs both levels (paper)",
            "not shown",
            gate_parts(),
            f"weakly: 3 pairs, {SHORT}, a rate that suits GRPO",
            link("2026-11-22-gate_modes"),
        ),
        Claim(
            "The mean over the answer is the best probe (paper)",
            "not tested",
            "answers here have one to three tokens, so that the probes hardly differ",
            "not",
            link("2026-11-22-probes"),
        ),
        Claim("The gate concentrates mass (paper)", "yes", concentration(), "fairly", link("2026-11-21-methods")),
        Claim(
            "The higher the rate, the worse OAR-G stands against GRPO at the same rate",
            "a sign of it",
            "; ".join(rate_text(task, "oar_g") for task in ("asides", "one_step")),
            "weakly: 2 to 5 pairs a rate; why was not found",
            link("families"),
        ),
        Claim(
            "What the lab measures before training goes with what training gains",
            "a sign of it",
            f"rank correlation of `{MEASURE}` with the gain: " + "; ".join(map(prediction, ("asides", "one_step"))),
            "weakly: chosen from 38 measures by these methods; it does not say who beats GRPO",
            link("lab_training"),
        ),
        Claim(
            "Credit costs little",
            "OAR-G yes, OAR-P no",
            cost_text(),
            "fairly, on one CPU and one small model",
            link("benchmark_tiny"),
        ),
    ]


def claim_table(found: Sequence[Claim]) -> str:
    return markdown(
        [["claim", "verdict", "figures: points [95 %] where nothing else is said", "tested", "page"], *map(list, found)]
    )
