"""What earlier sweeps say of the claims that they were made for."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Mapping

import numpy as np
from labels import rate
from leads import REPORTS, by_rate, side

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


def made_by(study: str) -> str:
    """The sweep that made a study's runs, which was one."""
    (command,) = {row["sweep_command"] for row in read_runs(study)}
    return f"`python -m oar_lightning -m {command}`"
