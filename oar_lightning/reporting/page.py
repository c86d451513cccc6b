"""Writes a study's folder: runs.csv, curves, figures and README.md, with the same bytes for the same runs."""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

from oar_lightning.common.config_check import ConfigError
from oar_lightning.common.markdown import markdown
from oar_lightning.common.outputs import replace_file
from oar_lightning.reporting.bands import last_tenth
from oar_lightning.reporting.checklist import checklist, hours
from oar_lightning.reporting.commands import commands
from oar_lightning.reporting.costs import PASSES, cost
from oar_lightning.reporting.export import CURVES, curves_csv, runs_csv
from oar_lightning.reporting.figures import FIGURES, Drawing, LeftOut, save
from oar_lightning.reporting.prose import prose, read_prose
from oar_lightning.reporting.runs import Curves
from oar_lightning.reporting.settings import ENDS, distinct, evaluation, is_trained, training
from oar_lightning.reporting.statistics import BOOTSTRAP_FROM, EXACT_UP_TO, LEAST, SIGN_DRAWS
from oar_lightning.reporting.study import Study
from oar_lightning.reporting.tables import differences_table, results_table, uncounted_table

MARK = "<!-- written by task=report: what stands between prose markers is kept, all else is written anew -->"
WIDTH = 130
"""Characters of a line of text."""

VERSIONS = ("python", "torch", "lightning", "transformers")
"""Tags of a run that hold versions."""

INTERVALS = (
    f"Student's t below n = {BOOTSTRAP_FROM}, which takes their scatter for normal; from there on percentile bootstrap. "
    f"Fewer than {LEAST} values have none, nor have equal ones."
)
"""How `mean_interval` makes them."""

ABOUT_CHECKLIST = (
    "What a study of credit assignment should state, by the survey arXiv 2604.09459 (appendix C), filled in from the runs. "
    "Not recorded: by these runs, or by the version of the program that ran them."
)

ANSWER = "<!-- one sentence, no stronger than the tables: what does this say to the question? -->"
"""What stands in for an answer that nobody has written; the index leaves it out."""

FINDINGS = "<!-- what was found, what was not, and what the study cannot say -->"


def kept_prose(folder: Path) -> dict[str, str]:
    """The hand-written blocks of the study's page; {} where there is no page.

    Raises:
        ConfigError: for a page that was not written by task=report, which would be overwritten, and for broken markers.
    """
    page = folder / "README.md"
    if not page.exists():
        return {}
    text = page.read_text(encoding="utf-8")
    if MARK not in text:
        raise ConfigError(f"{page} was not written by task=report and is left alone; set report.name=<another name>")
    return read_prose(text, str(page))


def write_study(folder: Path, study: Study, curves: Curves, kept: Mapping[str, str], command: str) -> list[LeftOut]:
    """Write the folder; returns the figures that were left out."""
    folder.mkdir(parents=True, exist_ok=True)
    figures = {name: draw(study, curves) for name, draw in FIGURES.items()}
    for name, figure in figures.items():
        if isinstance(figure, Drawing):
            save(figure.figure, folder / f"{name}.png")
        else:
            (folder / f"{name}.png").unlink(missing_ok=True)  # drawn for an earlier state of the study
    if curves:
        replace_file(folder / CURVES, curves_csv((run.run_id for run in study.runs), curves))
    replace_file(folder / "runs.csv", runs_csv(study, curves))
    replace_file(folder / "README.md", render(study, curves, figures, kept, command))
    return [figure for figure in figures.values() if isinstance(figure, LeftOut)]


def render(
    study: Study, curves: Curves, figures: Mapping[str, Drawing | LeftOut], kept: Mapping[str, str], command: str
) -> str:
    """The text of the page. `kept`: its hand-written blocks. A block named like a figure's file follows that figure; blocks
    with unknown names come last."""
    blocks = {"question": default_question(study), "answer": ANSWER, "findings": FINDINGS} | dict(kept)
    drawn = {name: figure for name, figure in figures.items() if isinstance(figure, Drawing)}
    left_out = [figure for figure in figures.values() if isinstance(figure, LeftOut)]
    parts = [
        MARK,
        f"# {study.name} ({study.date})",
        "**Question.**",
        prose("question", blocks.pop("question")),
        "**Answer.**",
        prose("answer", blocks.pop("answer")),
        "**Commands.**",
        "\n".join(["```", *commands(study, command), "```"]),
        markdown(facts(study, command)),
        "## Findings",
        prose("findings", blocks.pop("findings")),
        "## Results",
        markdown(results_table(study, curves)),
        about_results(study, curves),
        *differences(study),
    ]
    for name, figure in drawn.items():
        parts.append(f"## {figure.title}\n![{figure.title}]({name}.png)\n\n{wrapped(figure.caption)}")
        if name in blocks:
            parts.append(prose(name, blocks.pop(name)))
    if left_out:
        parts += ["## Figures left out", "\n".join(f"- {figure.title}: {figure.reason}." for figure in left_out)]
    parts += ["## Checklist", wrapped(ABOUT_CHECKLIST), markdown(checklist(study, curves))]
    if study.uncounted:
        parts += ["## Runs that do not count", markdown(uncounted_table(study))]
    parts += [prose(name, text) for name, text in blocks.items()]
    return "\n\n".join(parts) + "\n"


def default_question(study: Study) -> str:
    """The description of the sweep's run in MLflow; without one, a question about the varied keys."""
    for parent in study.parents:
        if parent.tags.get("mlflow.note.content"):
            return parent.tags["mlflow.note.content"]
    if not study.factors:
        return f"What is {study.metric} over {len(study.seeds)} seeds?"
    return f"How does {study.metric} depend on {' and '.join(f'`{key}`' for key in study.factors)}?"


def facts(study: Study, command: str) -> list[list[str]]:
    """A table of counts, settings, revisions, versions and hardware, from the runs' tags and parameters."""
    states = Counter(run.state for run in study.uncounted)
    counts = [f"{len(study.runs)} counted", *(f"{count} {state}" for state, count in sorted(states.items()))]
    versions = [f"{name} {_tag(study, name)}" for name in VERSIONS]
    return [
        ["", ""],
        ["runs", ", ".join(counts)],
        ["seeds", ", ".join(study.seeds)],
        ["varied", ", ".join(f"`{key}`" for key in study.factors) or "the seed only"],
        ["training", distinct(study.runs, training)],
        ["evaluation", distinct(study.runs, evaluation)],
        ["hours of all runs", hours(study)],
        ["revision", _tag(study, "git_revision")],
        ["versions", ", ".join(versions)],
        ["hardware", _tag(study, "hardware")],
        ["this page", f"`{command}`"],
    ]


def about_results(study: Study, curves: Curves) -> str:
    """The explanation of the table of results."""
    sizes = {len(arm.runs) for arm in study.arms}
    text = [f"`{study.metric}` at the end of training." if any(map(is_trained, study.runs)) else f"`{study.metric}`."]
    kept = [name.split(",")[0] for metric, name in ENDS.items() if any(last_tenth(r, curves, metric) for r in study.runs)]
    if kept:
        text.append(f"Means over its last tenth: {', '.join(kept)}.")
    if any(cost(run, curves, PASSES) for run in study.runs):
        text.append("Passes of scoring: in forward passes of a batch.")
    if sizes - {1}:
        text.append(f"Intervals over seeds: {INTERVALS}")
    if 1 in sizes:
        text.append("In italics: a single run's interval, over the evaluation's problems; other seeds are not in it.")
    given_up = any(map(study.given_up, study.arms))
    if len(study.arms) > 1:
        text.append(f"Bold: the highest mean{', where none of its runs was given up' if given_up else ''}.")
    if given_up:
        text.append("Runs that were given up are in no mean and no difference: an arm that has some looks better than it is.")
    return wrapped(" ".join(text))


def differences(study: Study) -> Sequence[str]:
    """The section of paired differences, or a sentence with the reason why there is none."""
    if len(study.arms) < 2:
        return []
    if study.baseline is None:
        labels = ", ".join(f"`{arm.label}`" for arm in study.arms[:3])
        more = ", ..." if len(study.arms) > 3 else ""
        why = "no arm, or more than one, has uniform credit. Name the arm to compare with: `report.baseline=<arm>`"
        return [wrapped(f"No paired differences: {why} ({labels}{more}).")]
    rows = differences_table(study)
    if len(rows) == 1:
        return [f"No paired differences: `{study.baseline.label}` shares no seed with another arm."]
    largest = max(len(study.differences(arm)) for arm in study.arms)
    drawn = f"; above n = {EXACT_UP_TO}: {SIGN_DRAWS:,} drawn ones" if largest > EXACT_UP_TO else ""
    about = (
        f"n pairs of runs with the same seed. Intervals over pairs: {INTERVALS} p: two-sided sign-flip permutation test of the "
        f"mean difference (all 2^n sign patterns{drawn}); Holm: adjusted for the {len(rows) - 1} comparisons. "
        "The smallest possible p is what n pairs give when all have one sign: with fewer than 6 pairs nothing reaches 0.05."
    )
    return [f"## Differences from `{study.baseline.label}`, paired by seed", markdown(rows), wrapped(about)]


def wrapped(text: str) -> str:
    return textwrap.fill(text, WIDTH, break_long_words=False, break_on_hyphens=False)


def _tag(study: Study, tag: str) -> str:
    return distinct(study.runs, lambda run: run.tags.get(tag))
