"""A lab's folder of reports/: the page, the numbers, and a README with the table."""

from __future__ import annotations

import json
import shutil
from collections.abc import Collection
from pathlib import Path

from oar_lightning.common.markdown import markdown
from oar_lightning.common.outputs import write_text
from oar_lightning.inspection.page import visible
from oar_lightning.lab.page.record import PAGE, RESULTS, TOKENS, LabRecord

TITLE = "# Credit lab"


def write_report(folder: Path, run_dir: Path, record: LabRecord, command: str | None, hidden: Collection[str]) -> None:
    """Copy a lab's files, the results without the `hidden` settings, and write the README, which takes the place of an earlier
    one."""
    settings = {key: value for key, value in (record.results.get("settings") or {}).items() if key not in hidden}
    write_text(folder / RESULTS, json.dumps({**record.results, "settings": settings}, indent=1) + "\n")
    for name in (PAGE, TOKENS):
        if (folder / name).absolute() != (run_dir / name).absolute():
            shutil.copyfile(run_dir / name, folder / name)
    write_text(folder / "README.md", readme(record, command))


def readme(record: LabRecord, command: str | None) -> str:
    results = record.results
    measures = {key: results["measures"][key] for key in record.headlines}
    header = ["estimator", *(f"{key.partition('.')[0]}: {m['title']}" for key, m in measures.items()), "seconds"]
    rows = []
    for name in record.ranking:
        own = results["estimators"][name]
        cells = [_cell(m["means"].get(name)) for m in measures.values()]
        rows.append([visible(name) + " (control)" * bool(own["control"]), *cells, f"{own['seconds']:.2f}"])
    table = markdown([[visible(cell) for cell in header], *rows])
    missing = "".join(f"\n{visible(sentence)}\n" for sentence in record.missing)
    made = f"\nMade by:\n\n```\n{visible(command)}\n```\n" if command else ""
    problems = len({c["problem"] for c in results["completions"]})
    return f"""{TITLE}

{len(results["completions"])} completions of {problems} problems; means [95 % interval over problems].
{missing}
{table}

Open [{PAGE}]({PAGE}) for the figures and the texts. All numbers are in [{RESULTS}]({RESULTS}) and, token by token, in
[{TOKENS}]({TOKENS}).
{made}"""


def _cell(mean: dict[str, float | None] | None) -> str:
    if mean is None or mean["mean"] is None:
        return "-"
    return f"{mean['mean']:.2f}" + ("" if mean["low"] is None else f" [{mean['low']:.2f}, {mean['high']:.2f}]")
