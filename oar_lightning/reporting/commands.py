"""The commands that make a study's runs again."""

from __future__ import annotations

import itertools
import shlex
from collections.abc import Iterable, Sequence

from oar_lightning.common.ordering import natural
from oar_lightning.reporting.runs import SWEEP_COMMAND, RunRecord, words
from oar_lightning.reporting.study import Study
from oar_lightning.tracking.history import FORKED_AT

PROGRAM = "python -m oar_lightning"
ELSEWHERE = ("seed=", "logger.experiment_name=", "resume=", "resume_changed=", "ckpt_path=", "output_root=")
"""Beginnings of words that are not part of a run's method, or that the printed command sets itself."""


def commands(study: Study, command: str) -> list[str]:
    """Lines for a shell that make the runs and then the page, whose own command is `command`.

    Trials are made by their sweeps' commands. Other runs are made as an experiment of the study's name, which holds nothing
    else, so that the page's command finds them: a run id or a filter that fits this store would not. Runs that went on from
    another one's state are left out: no command from scratch makes them, and they do not count.
    """
    runs = sorted((run for run in study.all_runs if FORKED_AT not in run.tags), key=lambda run: (run.started, run.run_id))
    sweeps = dict.fromkeys(run.tags[SWEEP_COMMAND] for run in runs if SWEEP_COMMAND in run.tags)
    plain = [run for run in runs if SWEEP_COMMAND not in run.tags]
    if not sweeps:
        experiment = f"logger.experiment_name={study.name}"
        tasks = sorted({run.tags.get("task", "train") for run in plain})
        which = f"= '{tasks[0]}'" if len(tasks) == 1 else "!= ''"
        chosen = [experiment, f'report.filter="tags.task {which}"']
        return [*_table(_arms(plain), shlex.quote(experiment)), _again(study, chosen)]
    lines = _table([words(sweep) for sweep in sweeps]) + (_table(_arms(plain)) if plain else [])
    return [*lines, _again(study, _of_sweeps(sweeps)) if " report.csv=" in command else command]


def _again(study: Study, chosen: Sequence[str]) -> str:
    """The command of a page of other runs, `chosen` by these words, which are compared as here."""
    options = {"report.name": study.name, "report.metric": study.metric}
    if study.baseline:
        options["report.baseline"] = f'"{study.baseline.label}"'
    return f"{PROGRAM} task=report {shlex.join([*chosen, *(f'{key}={value}' for key, value in options.items())])}"


def _of_sweeps(commands: Iterable[str]) -> list[str]:
    """Words that choose the runs of these sweeps, by what their names begin or end with; a place for their ids where they have
    neither in common."""
    key = "hydra.sweeper.study_name="
    names = [word.removeprefix(key) for command in commands for word in words(command) if word.startswith(key)]
    if len(names) == 1:
        return [f"sweep={names[0]}"]
    start, end = _beginning(names), _beginning([name[::-1] for name in names])[::-1]
    like = max((f"{start}%", f"%{end}"), key=len)
    if like == "%":  # it would find all runs of the store
        return ["report.runs=[ID,ID]"]
    return [f"report.filter=\"tags.sweep LIKE '{like}'\""]


def _arms(runs: Sequence[RunRecord]) -> list[list[str]]:
    """Words of each command, with the seeds of equal ones joined."""
    seeds: dict[tuple[str, ...], set[str]] = {}
    for run in runs:
        seeds.setdefault(tuple(w for w in run.overrides if not w.lstrip("+").startswith(ELSEWHERE)), set()).add(run.seed)
    return [[*line, f"seed={','.join(sorted(values, key=natural))}"] for line, values in seeds.items()]


def _table(arms: Sequence[Sequence[str]], more: str = "") -> list[str]:
    """The commands; several as one, with a table of the words that differ."""
    more = more and f" {more}"
    if len(arms) == 1 or any("\n" in word for arm in arms for word in arm):
        return [f"{PROGRAM} {'-m ' if _several(arm) else ''}{shlex.join(arm)}{more}" for arm in arms]
    shared = [word for word in arms[0] if all(word in arm for arm in arms) and not _in_order(word, arms)]
    if any(all(word in shared for word in arm) for arm in arms):  # xargs passes over an empty line
        shared.remove(arms[0][-1])  # the seeds
    rows = [shlex.join(word for word in arm if word not in shared) for arm in arms]
    return [" ".join([f"xargs -L 1 {PROGRAM} -m", *([shlex.join(shared)] if shared else [])]) + f"{more} <<'END'", *rows, "END"]


def _beginning(names: Sequence[str]) -> str:
    """The characters with which all names begin."""
    return "".join(one[0] for one in itertools.takewhile(lambda letters: len(set(letters)) == 1, zip(*names, strict=False)))


def _several(arm: Sequence[str]) -> bool:
    """Whether a command makes several runs."""
    return any(word.startswith("+sweeps=") or (word.startswith("seed=") and "," in word) for word in arm)


def _in_order(word: str, arms: Sequence[Sequence[str]]) -> bool:
    """Whether a word must stay where it is: it adds a config group, of which later ones win, or a line sets its key twice."""
    key = word.split("=", 1)[0]
    added = word.startswith("+") and "." not in key
    twice = any(sum(other.split("=", 1)[0].lstrip("+") == key.lstrip("+") for other in arm) > 1 for arm in arms)
    return twice or (added and any(_added(arm) != _added(arms[0]) for arm in arms))


def _added(arm: Sequence[str]) -> list[str]:
    return [word for word in arm if word.startswith("+") and "." not in word.split("=", 1)[0]]
