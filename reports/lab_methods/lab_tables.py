"""The tables of README.md, from the files beside it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from methods import BASELINE, COMPARED, FAMILIES, FURTHER, LAB_OF, LEFT_OUT, LEFT_OUT_SCORERS, TASKS

from oar_lightning.common.markdown import markdown

HERE = Path(__file__).parent

COLUMNS = {
    "first_error.auroc_free": "first error: AUROC, free",
    "first_error.hit_1": "first error: top token",
    "monte_carlo.auroc": "values: AUROC",
    "monte_carlo.sign": "values: sign",
}
"""The lab's measures of the tables -> their headings."""

COSINE, COSINE_HEADING = "same_batch/(values)", "cosine with the values' gradient"


def written(task: str) -> bool:
    return (HERE / f"{task}.json").exists()


def read(task: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((HERE / f"{task}.json").read_text(encoding="utf-8"))
    return found


def shown(cell: Mapping[str, Any]) -> str:
    if cell["mean"] is None:
        return "-"
    bounds = "" if cell["low"] is None else f" [{cell['low']:.2f}, {cell['high']:.2f}]"
    star = " *" if (cell.get("p_holm") or 1) < 0.05 else ""
    return f"{cell['mean']:.2f}{bounds}{star}"


def line(name: str, family: str, row: Mapping[str, Any]) -> list[str]:
    """An estimator's line of the tables."""
    passes = row["forward_equivalents"]
    cells = [shown(row[key]) for key in (*COLUMNS, COSINE)]
    return [f"`{name}`", family, *cells, f"{row['seconds']:.1f}", "" if passes is None else f"{passes:.1f}"]


HEADER = ["estimator", "family", *COLUMNS.values(), COSINE_HEADING, "seconds", "passes"]


def table_of_all(found: Mapping[str, Any]) -> str:
    """The methods by families, as docs/methods.md has them, and the controls."""
    rows = found["all"]["estimators"]
    lines = [HEADER]
    for family, names in FAMILIES.items():
        for name in names:
            if name in rows:
                lines.append(line(name, family, rows[name]))
            elif name == "rlcsd" and name in found:
                lines.append(line("rlcsd (1)", family, found[name]["estimators"][name]))
    lines += [line(name, "control", rows[name]) for name in FURTHER]
    return markdown(lines)


def table_of_few(found: Mapping[str, Any]) -> str:
    """The small labs."""
    lines = [["lab", "right", *HEADER[:1], *HEADER[2:]]]
    for lab, title in LAB_OF.items():
        if lab not in found:
            continue
        own = found[lab]
        for name in (lab, *COMPARED, BASELINE):
            row = line(name, "", own["estimators"][name])
            lines.append([title, f"{own['right']} of {own['completions']}", row[0], *row[2:]])
    return markdown(lines)


def sentence(lab: Mapping[str, Any]) -> str:
    """What was judged."""
    values, errors = (lab["truths"][name] for name in ("monte_carlo", "first_error"))
    sure = values["reliability"]["half_auroc"]
    parts = [
        f"{lab['completions']} completions of {lab['problems']} problems, {lab['right']} right, {errors['completions']} with a",
        f"first error; {lab['tokens']['free']} free of {lab['tokens']['reasoning']} reasoning tokens. By the values",
        f"{values['decisive']} tokens are decisive (one half of the first continuations ranks those of the other with an AUROC",
        f"of {sure:.2f}). Scores that know which tokens are free, and no more, have a values-AUROC of about",
        f"{by_freedom(lab['tokens'], values['decisive']):.2f}.",
    ]
    return " ".join(parts)


def by_freedom(tokens: Mapping[str, int], decisive: int) -> float:
    """The values-AUROC of random scores on free tokens and 0 elsewhere, all completions pooled: only free tokens can be
    decisive, so that such scores are above those of all other tokens, and above half of the free ones."""
    return 1 - (tokens["free"] - decisive) / (tokens["reasoning"] - decisive) / 2


def left_out() -> str:
    lines = [["left out", "why"]]
    lines += [[f"`+experiment={name}`", why] for name, why in LEFT_OUT.items()]
    lines += [[f"`scorer={name}`", why] for name, why in LEFT_OUT_SCORERS.items()]
    return markdown(lines)


def page() -> str:
    parts = []
    for task in TASKS:
        if written(task) and "all" in read(task):
            found = read(task)
            parts += [f"## {task}", sentence(found["all"]), table_of_all(found), table_of_few(found)]
    return "\n\n".join([*parts, "## Left out", left_out()]) + "\n"
