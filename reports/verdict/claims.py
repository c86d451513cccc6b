"""The claims of ../VERDICT.md: what is claimed, and what the studies' files say of it."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from labels import listed, rate
from leads import REPORTS, Lead, by_rate, decided_by, families, lead, results_of, side, verdicts
from measured import MEASURE, STEPS, TARGETS, cost_text, cost_verdict, gradient_text, gradient_verdict, prediction
from settled import asked, each_asked, evidence, greedily, half_reached, rules

from oar_lightning.common.markdown import markdown
from oar_lightning.reporting.statistics import LEAST, mean_interval


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


STABLE = ("0.3", "0.4", "0.5", "0.7")
"""Of tau, among those that were tried; the paper says that OAR is stable from the first to the last."""


def tau_means() -> str:
    """Seed by seed, since two of them make no interval."""
    found: dict[str, dict[str, list[float]]] = {}
    for row in read_runs("2026-11-22-tau_beta"):
        found.setdefault(row["gate.tau"], {}).setdefault(row["seed"], []).append(100 * float(row["objective"]))
    means = {tau: {seed: float(np.mean(own)) for seed, own in seeds.items()} for tau, seeds in found.items()}
    said = ", ".join(
        f"{np.mean([*seeds.values()]):.1f} ({' and '.join(f'{seeds[seed]:.1f}' for seed in sorted(seeds))}) at {tau}"
        for tau, seeds in sorted(means.items(), key=lambda item: float(item[0]))
    )
    spread = {seed: [means[tau][seed] for tau in STABLE] for seed in means[STABLE[0]]}
    between = " and ".join(f"{max(own) - min(own):.1f}" for _, own in sorted(spread.items()))
    return (
        f"accuracy in %, mean over three betas (and of each of two seeds): {said}; "
        f"best minus worst from 0.3 to 0.7: {between} points"
    )


def concentration() -> str:
    rows = [row for row in read_runs("2026-11-21-methods") if row["optimizer.lr"] == "0.0002"]
    texts = []
    for scorer, name in (("uniform", "GRPO"), ("oar_g", "OAR-G"), ("oar_p", "OAR-P")):
        own = [row for row in rows if row["scorer"] == scorer]
        ess, top = (mean_interval([float(row[f"credit/{key}"]) for row in own]) for key in ("ess_ratio", "top10_mass"))
        texts.append(f"{name} {ess:.3f} and {top:.3f}" if scorer != "uniform" else f"{name} {ess.mean:.2f} and {top.mean:.2f}")
    return "effective share of tokens, mass of the top tenth: " + ", ".join(texts)


def rate_text(task: str, method: str) -> tuple[str, str]:
    """Verdict and figures: leads over GRPO at the same rate, and how they change from the lowest to the highest rate that the
    same three seeds or more have run."""
    found = by_rate(task, method)

    def one(pairs: Mapping[int, float]) -> str:
        if len(pairs) < LEAST:
            values = " and ".join(f"{value:+.1f}" for value in pairs.values())
            return f"{np.mean([*pairs.values()]):+.1f} ({values})"
        return f"{mean_interval([*pairs.values()]):+.1f}"

    text, word = ", ".join(f"{one(pairs)} at {rate(lr)}" for lr, pairs in found.items()), "not shown"
    often = [lr for lr, pairs in found.items() if len(pairs) >= LEAST]
    if often and len(shared := found[often[0]].keys() & found[often[-1]].keys()) >= LEAST and len(often) > 1:
        change = mean_interval([found[often[-1]][seed] - found[often[0]][seed] for seed in sorted(shared)])
        text += f", from {rate(often[0])} to {rate(often[-1])} {change:+.1f}"
        word = "a sign of it" if side(change) == -1 else word
    return f"{task} {word}", f"{task} {text}"


class Claim(NamedTuple):
    text: str
    verdict: str
    figures: str
    n: str
    tested: str
    """Fairly, weakly or not, and why."""
    made: str
    """The command that makes the runs or measures."""
    page: str


SHORT = "80 updates"
FAIRLY = "fairly: as many tuning runs each, on other seeds"
ON_EACH = ("asides", "graph", rules.AGAIN.task, "one_step")
"""The tasks of claims that both studies have run."""


def link(folder: str) -> str:
    return f"[{folder.lstrip('-0123456789')}]({folder}/README.md)"


def commands_of(folder: str) -> str:
    return f"[commands of {folder.lstrip('-0123456789')}]({folder}/README.md#commands)"


def made_by(study: str) -> str:
    """The sweep that made a study's runs, which was one."""
    (command,) = {row["sweep_command"] for row in read_runs(study)}
    return f"`python -m oar_lightning -m {command}`"


EXPLORED = "explored: as many tuning runs each, but nobody had asked"
CHOSE = "weakly: two of the five pairs chose the rates, 128 problems"


def compared(
    text: str, method: str, over: str, words: Mapping[tuple[str, str], str], leads: Mapping[tuple[str, str], Lead]
) -> Claim:
    """Whether one method ends above another, task by task: the study with rules of its own decides where it has the pairs, and
    the families' five pairs stand beside it. `words`, `leads`: (task, method) -> those of the families."""
    verdicts, figures, counts, tested, pages = [], [], [], [], []
    for task in ON_EACH:
        own = evidence(task, method, over, "again" if task == rules.AGAIN.task else "endpoint")
        five = leads.get((task, method))
        said = words.get((task, method), "")
        shown = f"{five.every:+.1f}{decided_by(five)}" if five else ""
        if own:
            verdicts.append(f"{task} {own.word}{'' if own.asked else ' (explored)'}")
            figures.append(f"{task} {own.lead:+.1f}" + (f" (families, 5 pairs: {shown}, {said})" if five else ""))
            counts.append(f"{task} {own.pairs} pairs")
            tested.append((FAIRLY if own.asked else EXPLORED, task))
        elif five:
            verdicts.append(f"{task} {said}")
            figures.append(f"{task} {shown}")
            counts.append(f"{task} 5 pairs")
            tested.append((CHOSE, task))
        pages += ["settle"] * bool(own) + ["families"] * bool(five)
    pages = sorted(set(pages), reverse=True)
    ways = {way: [task for found, task in tested if found == way] for way in (FAIRLY, EXPLORED, CHOSE)}
    how = [f"{listed(tasks)} {way}" for way, tasks in ways.items() if tasks]
    cells = ("; ".join(verdicts), "; ".join(figures), ", ".join(counts), "; ".join(how))
    return Claim(text, *cells, ", ".join(map(commands_of, pages)), ", ".join(map(link, pages)))


def against(said: Sequence[tuple[str, str, str]]) -> list[Claim]:
    """Claims that one method does better than another, by the rule for leads over GRPO, with a correction of their own."""
    found = {
        (over, task, method): one
        for _, method, over in said
        for task in families.TASKS
        if (one := lead(results_of(task), task, method, over))
    }
    words = verdicts(found)
    return [
        compared(
            text,
            method,
            over,
            {(task, own): word for (of, task, own), word in words.items() if of == over},
            {(task, own): one for (of, task, own), one in found.items() if of == over},
        )
        for text, method, over in said
    ]


OVER_GRPO = (
    ("Perfect credit beats GRPO, so that there is something to find", "oracle"),
    ("OAR-G beats GRPO (paper)", "oar_g"),
    ("OAR-P beats GRPO (paper)", "oar_p"),
)
AGAINST = (
    ("OAR-P does better than OAR-G (paper: at least as well)", "oar_p", "oar_g"),
    ("OAR-G's scores do better than random ones", "oar_g", "random"),
    ("OAR-G's scores do better than the same, shuffled", "oar_g", "shuffled"),
    ("OAR-G's scores do better than inverted ones", "oar_g", "inverted"),
)
"""Claim, method, the method that it is compared with."""


def by_rules(text: str, said: tuple[str, str], pairs: str = "12 fresh pairs", tested: str = FAIRLY) -> Claim:
    """Of the study with rules of its own. `said`: verdict and figures."""
    return Claim(text, *said, pairs, tested, commands_of("settle"), link("settle"))


def claims(leads: Mapping[tuple[str, str], Lead], said: Mapping[tuple[str, str], str]) -> list[Claim]:
    rates = [rate_text(task, "oar_g") for task in families.TASKS if by_rate(task, "oar_g")]
    lab = [prediction(task) for task in ("asides", "one_step")]
    return [
        *(compared(text, method, families.BASELINE, said, leads) for text, method in OVER_GRPO),
        *against(AGAINST),
        by_rules(
            "OAR-G beats GRPO where answers have several tokens, after as many updates and in as much time, and scores in its "
            "gate that say nothing, by rules written before these runs",
            asked(rules.AGAIN, "again"),
            "24 fresh pairs",
            f"{FAIRLY}; asked because other pairs had shown a sign of it",
        ),
        by_rules(
            "An estimate that does not know which step went wrong gains half of what perfect credit gains, by rules written "
            "before its runs (ours)",
            half_reached(),
            tested="weakly: its form was chosen on `asides`; the limit of its time was restated after most of its runs; it has "
            "greedy continuations verified, too",
        ),
        by_rules(
            "What such an estimate trains is better with greedy decoding, too, and not only less random, by rules written "
            "before those runs (ours)",
            greedily(),
        ),
        by_rules(
            "It matters for such estimates on which tokens the weight lies, and not only on how few, by rules written before "
            "the runs of each control (ours)",
            each_asked(rules.PLACES),
        ),
        by_rules(
            "What turning point and shared states gain is more than their time buys, by rules written before these runs (ours)",
            each_asked(rules.TIMELY),
            tested="fairly; what is guessed between searches was chosen on `asides`, by four runs with tuning's seeds",
        ),
        by_rules(
            "Credit leads GRPO where both train on for as many more updates, by rules written before these runs (ours)",
            each_asked(rules.LASTING),
        ),
        by_rules(
            "An estimate that needs no further run of the model beats GRPO after as many updates, by a rule written before "
            "these runs (ours)",
            asked(rules.AT_NO_PASS, "again"),
            "24 fresh pairs",
            f"{FAIRLY}; asked because other pairs had shown a sign of it",
        ),
        Claim(
            "OAR is stable for tau in 0.3 to 0.7 (paper)",
            "not contradicted",
            tau_means(),
            "2 seeds a cell",
            f"weakly: {SHORT}, not at a rate that was tuned for OAR-G",
            made_by("2026-11-22-tau_beta"),
            link("2026-11-22-tau_beta"),
        ),
        Claim(
            "The gate needs both levels (paper)",
            "not shown",
            gate_parts(),
            "3 pairs",
            f"weakly: {SHORT}, a rate that suits GRPO",
            made_by("2026-11-22-gate_modes"),
            link("2026-11-22-gate_modes"),
        ),
        by_rules(
            "The mean over the answer is the best probe (paper), by rules written before the runs",
            asked(rules.PROBES),
            tested=f"{FAIRLY}, answers of three numbers",
        ),
        Claim(
            "The gate concentrates mass (paper)",
            "yes",
            concentration(),
            "5 runs a method",
            "fairly",
            "[commands of methods](2026-11-21-methods/README.md)",
            link("2026-11-21-methods"),
        ),
        Claim(
            "The higher the rate, the worse OAR-G stands against GRPO at the same rate",
            "; ".join(word for word, _ in rates),
            "; ".join(text for _, text in rates),
            "up to 5 pairs a rate",
            "weakly: few pairs at most rates",
            commands_of("families"),
            link("families"),
        ),
        Claim(
            "What the lab measures before training goes with what training gains",
            "; ".join(word for word, _, _ in lab),
            "rank correlation of the gain with the cosine between a method's gradient and that under Monte-Carlo values "
            f"(`{MEASURE}`), over all methods and without perfect credit, 80/20 and inverted scores: "
            f"{'; '.join(text for _, text, _ in lab)}",
            " and ".join(n for _, _, n in lab),
            "weakly: chosen from 38 measures by these methods; it does not say who beats GRPO",
            "`python reports/lab_training/measure.py --lab asides`",
            link("lab_training"),
        ),
        Claim(
            "OAR-G's weights change the gradient's direction (ours)",
            gradient_verdict(),
            gradient_text(),
            "128 batches a policy",
            "fairly, of two policies of one task; one policy of `asides` on its page",
            "`python reports/mechanism/measure.py graph`",
            link("mechanism"),
        ),
        Claim(
            "A step costs at most our target, in GRPO steps: "
            + ", ".join(f"{TARGETS[key]:g} with {name}" for key, name in STEPS.items()),
            cost_verdict(),
            cost_text(),
            "1 machine",
            "fairly, on one CPU and one small model",
            "`python -m oar_lightning task=benchmark`",
            link("benchmark_tiny"),
        ),
    ]


def claim_table(found: Sequence[Claim]) -> str:
    return markdown(
        [
            ["claim", "verdict", "figures: points [95 %] where nothing else is said", "n", "tested", "made by", "page"],
            *map(list, found),
        ]
    )
