"""The texts are as short as they promise, and what they name exists."""

from __future__ import annotations

import pydoc
import re
from pathlib import Path

import pytest
from support.pages import PAGES, ROOT, TEXTS, name_of, read

PACKAGE = ROOT / "oar_lightning"


def lines_over(path: Path, limit: int) -> list[str]:
    return [line for line in read(path).splitlines() if len(line) > limit]


def test_the_readme_is_short() -> None:
    assert len(read(ROOT / "README.md").splitlines()) <= 150
    assert not lines_over(ROOT / "README.md", 120)
    assert not lines_over(ROOT / "CONTRIBUTING.md", 100)


def test_the_readme_maps_every_room() -> None:
    (block,) = re.findall(r"^```text\noar_lightning/\n(.*?)^```", read(ROOT / "README.md"), re.MULTILINE | re.DOTALL)
    rooms = {f"{path.parent.name}/" for path in PACKAGE.glob("*/__init__.py")} | {"types.py", "__main__.py", "assets/"}
    assert set(re.findall(r"^  ([\w.]+/?) ", block, re.MULTILINE)) == rooms


def test_every_page_is_in_the_contents() -> None:
    contents = re.findall(r"^```\{toctree\}\n(.*?)^```", read(ROOT / "docs" / "index.md"), re.MULTILINE | re.DOTALL)
    listed = {line for block in contents for line in block.splitlines() if line and not line.startswith(":")}
    assert {path.stem for path in (ROOT / "docs").glob("*.md")} - {"index"} <= listed


@pytest.mark.parametrize(("page", "folder"), [("experiments.md", "conf/experiment"), ("sweeps.md", "sweeps")])
def test_a_page_lists_all_files(page: str, folder: str) -> None:
    (listed,) = re.findall(rf"^The files of `{folder}/?` .*?: (.*?)\.$", read(ROOT / "docs" / page), re.MULTILINE | re.DOTALL)
    assert re.findall(r"`(\w+)`", listed) == sorted(path.stem for path in (ROOT / folder).glob("*.yaml"))


@pytest.mark.parametrize("path", TEXTS, ids=name_of)
def test_links_to_files_lead_somewhere(path: Path) -> None:
    found = re.findall(r"\]\(([^)\s]+)\)|^\[\w+\]: (\S+)$", read(path), re.MULTILINE)
    targets = [(inline or defined).split("#")[0] for inline, defined in found]
    files = [target for target in targets if target and not re.match(r"\w+:", target)]
    assert [target for target in files if not (path.parent / target).exists()] == []


@pytest.mark.parametrize("path", TEXTS, ids=name_of)
def test_links_to_places_in_pages_lead_to_a_heading(path: Path) -> None:
    found = [link.split("#") for link in re.findall(r"\]\(([^)\s:]*\.md#[^)\s]+|#[^)\s]+)\)", read(path))]
    lost = [(page, place) for page, place in found if place not in places_of((path.parent / page).resolve() if page else path)]
    assert lost == []


def places_of(page: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub makes them, and those that it names itself."""
    text = read(page)
    headings = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    plain = [re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading) for heading in headings]
    named = set(re.findall(r"^\(([\w-]+)\)=$", text, re.MULTILINE))
    return named | {re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in plain}


@pytest.mark.parametrize("path", TEXTS, ids=name_of)
def test_named_files_exist(path: Path) -> None:
    named = re.findall(r"`((?:tests|oar_lightning|conf|sweeps|reports|docs|hydra_plugins)/[\w./]+)`", read(path))
    assert [name for name in named if not (ROOT / name).exists()] == []


@pytest.mark.parametrize("path", PAGES, ids=name_of)
def test_named_code_exists(path: Path) -> None:
    """Import paths, as in `oar_lightning.answers.reward.FunctionReward`."""
    named = set(re.findall(r"\boar_lightning(?:\.[A-Za-z_]\w*)+", read(path)))
    assert [name for name in sorted(named) if pydoc.locate(name) is None] == []
