"""All methods of credit in the credit lab, on four tasks: the tables of README.md.

python reports/lab_methods/measure.py --past chain   # the short runs of SPRO, PRIME and iStar on a task (some minutes)
python reports/lab_methods/measure.py --lab chain    # the labs of a task -> chain.json (some minutes)
python reports/lab_methods/measure.py                # the tables alone, from the files beside it
"""

from __future__ import annotations

import argparse
import json
import math
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from oar_lightning.common.markdown import fill, markdown
from oar_lightning.lab.comparison import differences
from oar_lightning.lab.study import estimator, lab_results, of_experiment, without
from oar_lightning.lab.types import Measure

HERE = Path(__file__).parent

TASKS: dict[str, list[str]] = {
    "chain": [],
    "asides": ["+variant=asides"],
    "one_step": ["+variant=one_step"],
    "graph": ["+variant=graph"],
    "graph_hints": ["+variant=graph", "policy=graph_hints"],
}

HINTED = "graph_hints"
"""The task whose policy reads another solution as a hint, and no other hint: the lab of the methods that tell one."""

FAMILIES: dict[str, tuple[str, ...]] = {
    "OAR": ("oar_g", "oar_p", "oar_p_approximate"),
    "total effect": ("total_effect", "total_effect_fast"),
    "forward-free": (
        "eighty_twenty",
        "entropy",
        "entropy_advantage",
        "gtpo",
        "ar",
        "steer",
        "ucas",
        "ktae",
        "hicra",
        "otb",
        "shear",
    ),
    "Monte-Carlo values": ("vineppo", "spo_chain"),
    "information gain": ("information_gain", "igpo", "spae", "pure", "acpo", "acpo_add"),
    "judged steps": ("capo",),
    "hindsight": ("rlsd", "serl", "rlsd_contrast", "rlcsd"),
    "shared states": ("gigpo", "anchor_states"),
    "turning points": ("turning_point",),
    "implicit rewards": ("prime", "istar"),
    "start of training": ("spro",),
    "control": ("grpo", "random", "action_mask", "oracle"),
}
"""Family -> the experiments of it, which are the estimators. A family's name is that of its part of docs/methods.md."""

FURTHER = {
    "shuffled": estimator("shuffled", "shuffled", "bilevel"),
    "inverted": estimator("inverted", "inverted", "bilevel"),
    "late": [],
    "early": [],
    "improbability": [],
    "is_digit": [],
}
"""Controls that no experiment trains with -> their overrides; none for those of the lab's own list."""

BASELINE = "is_digit"

DEFAULTS = (
    "random",
    "entropy",
    "oracle",
    "oar_g",
    "oar_p",
    "information_gain",
    "total_effect",
    "total_effect_fast",
)
"""Estimators of the lab's own list that an experiment replaces, whose gate is another in part."""

LOSS = "their credit is GRPO's, the same for all tokens; the loss differs"
SETTING = "no method: a setting of OAR-G"
SUPERVISED = "supervised training"
LEFT_OUT = {
    "archer": "scores are those of `entropy`, and token advantages GRPO's: they widen clip bounds, of which nothing is seen "
    "in a single gradient of what was just sampled",
    "dapo": LOSS,
    "dr_grpo": LOSS,
    "oracle_signed": "its right and wrong decisions are those of `oracle` and `capo`",
    "paper_qwen2_5_1_5b": SETTING,
    "paper_qwen2_5_7b": SETTING,
    "smoke": SETTING,
    "warm_start": SUPERVISED,
    "warm_start_graph": SUPERVISED,
    "warm_start_graph_asides": SUPERVISED,
    "warm_start_graph_hints": SUPERVISED,
    "warm_start_graph_misconceptions": SUPERVISED,
}
"""Experiment -> why no estimator is it."""

LEFT_OUT_SCORERS = {
    "oar_p_steps": "`oar_p` of whole steps; no experiment has it",
    "oracle_signed": LEFT_OUT["oracle_signed"],
    "reference_oar_g": "an unoptimised second implementation of `oar_g`, to which tests hold that",
    "reference_oar_p": "an unoptimised second implementation of `oar_p`, to which tests hold that",
}

READS_HINTS = ("rlsd", "serl", "rlsd_contrast", "rlcsd")
TOLD_A_SOLUTION = {"rlsd": ["scorer.hint=correct_sibling"], "serl": ["scorer.hint=correct_sibling"]}
"""Experiment -> further settings where the policy reads solutions alone."""
PAST = ("spro", "prime", "istar")
UPDATES = 40
RUN = [
    f"trainer.max_steps={UPDATES}",
    "update.problems=8",
    "update.microbatches=1",
    "optimizer.lr=2e-4",
    "schedule.warmup_steps=10",
    "evaluation.every_n_steps=0",
    "evaluation.problems=32",
    "evaluation.samples=4",
    "evaluation.heatmap=false",
    "num_threads=1",
    "logger=none",
]
"""Settings of a short run beside its experiment and task."""

SETTINGS = [
    f"lab.baseline={BASELINE}",
    "lab.faithfulness=null",
    "lab.stability=null",
    "logger=none",
    "num_threads=1",
    *without(*DEFAULTS),
]
DAPO = "loss.reduction=dapo"

COLUMNS = {
    "first_error.auroc_free": "first error: AUROC, free",
    "first_error.hit_1": "first error: top token",
    "monte_carlo.auroc": "values: AUROC",
    "monte_carlo.sign": "values: sign",
}
"""The lab's measures of the tables -> their headings."""

COSINE, COSINE_HEADING = "same_batch/(values)", "cosine with the values' gradient"


def name_in_lab(experiment: str) -> str:
    """The lab's own list has estimators of the same names."""
    return f"experiment_{experiment}"


def added(task: str, experiments: Iterable[str]) -> list[str]:
    """The overrides that add the estimators of experiments."""
    words = []
    for experiment in experiments:
        more = ["scorer/teacher=policy"] if experiment in READS_HINTS else []
        more += TOLD_A_SOLUTION.get(experiment, []) if task == HINTED else []
        words += of_experiment(experiment, name_in_lab(experiment), *more)
    return words


def run_folder(task: str, experiment: str) -> str:
    return f"outputs/lab_methods/{task}/{experiment}"


def of_run(task: str, experiment: str) -> list[str]:
    """The overrides that give an estimator its past, and that judge the policy of its run."""
    folder = run_folder(task, experiment)
    return [f"lab.past={folder}", "policy=hf", f"policy.name={folder}/policy"]


COMPARED = ("grpo", "random")
"""Beside `BASELINE`, in each of the small labs."""

LAB_OF = {"spro": "after SPRO's run", "istar": "after iStar's run", "rlcsd": f"`{DAPO}`"}
"""Experiment -> what is special about a small lab of its own."""


def labs(task: str) -> dict[str, list[str]]:
    """Name -> the overrides of a lab of this task. `all` judges the task's policy by all methods that can."""
    apart = {"spro", "rlcsd"}
    families = FAMILIES if task != HINTED else {name: FAMILIES[name] for name in ("hindsight", "control")}
    methods = [name for family in families.values() for name in family if name not in apart]
    controls = [word for words in FURTHER.values() for word in words]
    base = [*TASKS[task], *SETTINGS]
    few = [*base, *without("late", "early", "improbability")]
    rlcsd = [*few, *added(task, ["rlcsd", *COMPARED]), DAPO]
    if task == HINTED:
        return {"all": [*base, *added(task, methods), *controls], "rlcsd": rlcsd}
    pasts = ",".join(run_folder(task, name) for name in ("prime", "istar"))
    return {
        "all": [*base, *added(task, methods), *controls, f"lab.past=[{pasts}]"],
        "rlcsd": rlcsd,
        "spro": [*few, *added(task, ["spro", *COMPARED]), *of_run(task, "spro")],
        "istar": [*few, *added(task, ["istar", *COMPARED]), *of_run(task, "istar")],
    }


def train_past(task: str, *more: str) -> None:
    """The short runs of the methods with a past."""
    for experiment in PAST:
        command = [sys.executable, "-m", "oar_lightning", f"+experiment={experiment}", *TASKS[task], *RUN]
        subprocess.run([*command, f"hydra.run.dir={run_folder(task, experiment)}", *more], check=True)


def run_labs(task: str, only: Sequence[str], *more: str) -> None:
    """The labs of a task, and what the tables need of each into a file, which keeps those of earlier times."""
    for name, words in labs(task).items():
        if name in only:
            found = (read(task) if written(task) else {}) | {name: kept(lab_results(*words, *more))}
            (HERE / f"{task}.json").write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


def kept(results: Mapping[str, Any]) -> dict[str, Any]:
    """What the tables need of a lab's results.json: of each estimator the means of `COLUMNS` and the cosine, with intervals,
    p-values of differences to `BASELINE`, adjusted over these columns, and costs."""
    problem = [c["problem"] for c in results["completions"]]
    measures = [
        Measure(key, key, "high", {n: nan_for_none(v) for n, v in results["measures"][key]["values"].items()})
        for key in COLUMNS
    ]
    adjusted = {(d.measure, d.estimator): d.p_holm for d in differences(measures, BASELINE, problem)}
    rows = {}
    for name, cost in results["estimators"].items():
        cells = {}
        for key in COLUMNS:
            p_holm = adjusted.get((key, name), math.nan)
            cells[key] = results["measures"][key]["means"][name] | {"p_holm": None if math.isnan(p_holm) else p_holm}
        cells[COSINE] = results["gradients"][name][COSINE]
        rows[name.removeprefix(name_in_lab(""))] = {key: rounded(cell) for key, cell in cells.items()} | {
            "seconds": cost["seconds"],
            "forward_equivalents": cost["forward_equivalents"],
        }
    truths = {name: results["truths"][name] for name in ("first_error", "monte_carlo")}
    completions = {"completions": len(problem), "problems": len(set(problem)), "tokens": results["tokens"]}
    right = sum(bool(c["correct"]) for c in results["completions"])
    return completions | {"right": right, "truths": truths, "estimators": rows}


def nan_for_none(values: Sequence[float | None]) -> tuple[float, ...]:
    return tuple(math.nan if value is None else value for value in values)


def rounded(cell: Mapping[str, float | None]) -> dict[str, float | None]:
    return {key: value if value is None else round(value, 6) for key, value in cell.items()}


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
        f"{values['decisive']} tokens are decisive (one half of the continuations ranks those of the other with an AUROC of",
        f"{sure:.2f}). Scores that know which tokens are free, and no more, have a values-AUROC of about",
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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--past", metavar="TASK", choices=TASKS, help="make the short runs on this task")
    parser.add_argument("--lab", metavar="TASK", choices=TASKS, help="run the labs of this task")
    parser.add_argument("--only", metavar="LAB", choices=labs("chain"), help="of these labs this one")
    options, more = parser.parse_known_args()
    if options.past:
        train_past(options.past, *more)
    if options.lab:
        run_labs(options.lab, [options.only] if options.only else [*labs(options.lab)], *more)
    if not options.past:
        fill(HERE / "README.md", page())


if __name__ == "__main__":
    main()
