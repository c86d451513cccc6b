"""The index of all studies: reports/README.md."""

from __future__ import annotations

import re
from pathlib import Path

from oar_lightning.common.markdown import markdown
from oar_lightning.common.outputs import replace_file
from oar_lightning.reporting.page import ANSWER, MARK
from oar_lightning.reporting.prose import read_prose, with_generated


def write_index(reports: Path) -> None:
    """List the studies under `reports` in the generated part of its README.md; the rest of that page stays."""
    rows = [["study", "question", "answer"]]
    for page in sorted(reports.glob("*/README.md"), reverse=True):
        text = page.read_text(encoding="utf-8")
        if MARK in text:
            blocks = read_prose(text, str(page))
            said = [_cell(blocks.get(name, ""), page.parent.name) for name in ("question", "answer")]
            rows.append([f"[{page.parent.name}]({page.parent.name}/README.md)", *said])
    index = reports / "README.md"
    before = index.read_text(encoding="utf-8") if index.exists() else "# Studies\n"
    replace_file(index, with_generated(before, f"## By `task=report`\n\n{markdown(rows)}"))


def _cell(block: str, folder: str) -> str:
    """A block's first paragraph as a cell of a table, with links that lead on from the index."""
    paragraph = " ".join(block.replace(ANSWER, "").split("\n\n")[0].split())
    paragraph = paragraph.replace("](#", f"]({folder}/README.md#")  # to a place of the study
    paragraph = re.sub(rf"\]\((?!\.\./|[a-z+]+:|/|{re.escape(folder)}/)", f"]({folder}/", paragraph)  # to one of its files
    return paragraph.replace("](../", "](")  # to a study beside it
