"""The list of studies: generated pages only, beside what was written by hand."""

from __future__ import annotations

from pathlib import Path

from oar_lightning.reporting.index import write_index
from oar_lightning.reporting.page import ANSWER, MARK
from oar_lightning.reporting.prose import prose


def page(folder: Path, question: str, answer: str | None = None) -> None:
    folder.mkdir()
    answered = "" if answer is None else f"\n{prose('answer', answer)}\n"
    (folder / "README.md").write_text(f"{MARK}\n\n{prose('question', question)}\n{answered}")


def test_the_index_lists_what_a_report_wrote(tmp_path: Path) -> None:
    page(tmp_path / "2026-01-01-a", "First?", ANSWER)
    page(
        tmp_path / "2026-02-01-b",
        "Second | and\n[third](../x/README.md)?\n\nMore.",
        "It |\n[does](../x/README.md): [runs](runs.csv), [found](#found), [web](https://a.b).\n\nMore.",
    )
    (tmp_path / "by_hand").mkdir()
    (tmp_path / "by_hand" / "README.md").write_text("# Mine\n")
    write_index(tmp_path)
    index = tmp_path / "README.md"
    table = [line for line in index.read_text().splitlines() if line.startswith("| [")]
    assert table == [
        "| [2026-02-01-b](2026-02-01-b/README.md) | Second \\| and [third](x/README.md)? | It \\| [does](x/README.md): "
        "[runs](2026-02-01-b/runs.csv), [found](2026-02-01-b/README.md#found), [web](https://a.b). |",
        "| [2026-01-01-a](2026-01-01-a/README.md) | First? |  |",
    ]
    first = index.read_text()
    write_index(tmp_path)
    assert index.read_text() == first
    index.write_text(f"# Mine\n\n| a | b |\n\n{first.split('# Studies')[1].strip()}\n\nBelow.\n")
    page(tmp_path / "2026-03-01-c", "Fourth?")
    write_index(tmp_path)
    text = index.read_text()
    assert text.startswith("# Mine\n\n| a | b |\n")
    assert text.endswith("\n\nBelow.\n")
    assert text.count("| [2026-") == 3
