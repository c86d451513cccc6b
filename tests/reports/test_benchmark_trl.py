"""The comparison with TRL: what becomes of the measured seconds, its page, its refusals, and a child's turns."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

FOLDER = Path(__file__).parents[2] / "reports" / "benchmark_trl"


@pytest.fixture
def page(load) -> ModuleType:
    return load("page")


@pytest.fixture
def compare(load) -> ModuleType:
    return load("compare")


def steps(*seconds: float, **parts: float) -> list[dict[str, Any]]:
    rest = {"mean_length": 40.0, "reward": 0.5, "zero_std": 0.25, "others": 0.0}
    return [{"seconds": s, "parts": parts, **rest} for s in seconds]


def result(grpo: list[dict[str, Any]]) -> dict[str, Any]:
    facts = {"parameters": 340_000, "threads": 2, "python": "3.11.7", "torch": "2.13.0", "transformers": "5.23.0"}
    contestants = {
        "trl_whole": ("TRL, one batch", facts | {"trl": "1.16.0"}, steps(4.0, 3.0, 2.0, generate=1.0, reward=0.0)),
        "trl_quarters": ("TRL, 4", facts | {"trl": "1.16.0"}, steps(2.0, 2.0, 4.0, generate=1.0, reward=0.0)),
        "grpo": ("GRPO here", facts | {"oar_lightning": "1.0"}, grpo),
        "oar_g": ("OAR-G here", facts | {"oar_lightning": "1.0"}, steps(2.2, 2.2, 2.2, generate=0.5, reward=0.1, credit=0.4)),
    }
    return {
        "title": "A task",
        "machine": "Linux x86_64, 2 cores",
        "rounds": 3,
        "warmup": 2,
        "repeated": 1,
        "completions": 256,
        "contestants": {k: {"title": t, "facts": f, "steps": s} for k, (t, f, s) in contestants.items()},
    }


def test_ratios_are_of_steps_of_the_same_round(page: ModuleType) -> None:
    measured = page.ratio(steps(1.0, 1.0, 8.0), of=steps(2.0, 1.0, 4.0))  # 0.5, 1, 2; of the medians: 0.5
    assert (measured.median, measured.rounds) == (1.0, (0.5, 1.0, 2.0))


def test_trl_is_taken_at_its_fastest(page: ModuleType) -> None:
    assert page.fastest_trl(result(steps(0.1, 0.1, 0.1))["contestants"]) == "trl_quarters"  # medians 3 and 2; ours never counts


def test_rounds_that_cannot_be_compared_are_an_error(page: ModuleType) -> None:
    with pytest.raises(ValueError, match="zip"):
        page.ratio(steps(1.0), of=steps(1.0, 2.0))


@pytest.mark.parametrize(
    ("setting", "name", "seconds", "expected"),
    [
        ("tiny", "grpo", 0.5, "0.5: met, within it 3 of 3 rounds"),
        ("tiny", "grpo", 0.51, "0.5: missed, within it 0 of 3 rounds"),
        ("tiny", "oar_g", 0.9, "1: met, within it 3 of 3 rounds"),
        ("wide", "grpo", 0.36, "0.35: missed, within it 0 of 3 rounds"),
        ("wide", "oar_g", 5.0, "-"),
        ("tiny", "trl_whole", 5.0, "-"),
    ],
)
def test_targets(page: ModuleType, setting: str, name: str, seconds: float, expected: str) -> None:
    assert page.verdict(setting, name, page.Ratio((seconds,) * 3)) == expected


def test_table(page: ModuleType) -> None:
    header, _, quarters, grpo, oar_g = page.step_table("tiny", result(steps(1.0, 1.0, 1.0, generate=0.5)))
    assert quarters[:5] == ["TRL, 4 **(counts)**", "2.00", "2.00 to 4.00", "-", "1"]
    assert grpo == [
        "GRPO here",
        "1.00",
        "1.00 to 1.00",
        "-",
        "0.50 (0.25 to 0.50)",
        "0.5: met, within it 3 of 3 rounds",
        "10240",
        "0.50",
        "25 %",
        "-",
    ]
    assert oar_g[header.index("target")].startswith("1: missed, within it ")  # 1.1


def test_processor_time_and_memory_are_in_the_table_where_they_were_kept(page: ModuleType) -> None:
    kept = result(steps(1.0, 1.0, 1.0))
    for step, used in zip(kept["contestants"]["grpo"]["steps"], (1.9, 1.7, 1.8), strict=True):
        step |= {"cpu_seconds": used, "peak_bytes": int(used * 2**30)}
    header, *_, grpo, _ = page.step_table("tiny", kept)
    found = dict(zip(header, grpo, strict=True))
    assert found["CPU s (median)"] == "1.80"
    assert found["peak MB of the process"] == "1946"


def test_parts_add_up_to_the_step(page: ModuleType) -> None:
    rows = page.part_table(result(steps(1.0, 1.0, 1.0, generate=0.4, reward=0.05, credit=0.0)))
    assert rows[1] == ["TRL, one batch", "1.000", "0.000", "-", "2.000"]
    assert rows[3] == ["GRPO here", "0.400", "0.050", "0.000", "0.550"]


def test_the_page_says_how_quiet_it_was(page: ModuleType) -> None:
    quiet = result(steps(1.0, 1.0, 1.0, generate=0.5))
    assert page.rounds_text(quiet) == "3 rounds after 2 of warm-up; 1 tries did not count (not quiet)."
    loud = [step | {"others": share} for step, share in zip(steps(1.0, 1.0, 1.0), (0.5, 0.1, None), strict=True)]
    assert "; **1 of the 12 steps that count were not quiet**." in page.rounds_text(result(loud))


def test_readme(page: ModuleType) -> None:
    text = page.readme({"tiny": result(steps(1.0, 1.0, 1.0, generate=0.5))})
    for part in (
        "## `tiny`",
        "0.5: met",
        "0.34 M",
        "2 threads",
        "trl 1.16.0",
        "torch 2.13.0",
        "oar_lightning 1.0",
        "--trl-python",
    ):
        assert part in text
    assert "## `wide`" not in text
    assert page.markdown([["a", "b"], ["1", "2"]]) == "| a | b |\n|---|---|\n| 1 | 2 |"


def test_the_page_in_the_repository_is_that_of_its_results(page: ModuleType) -> None:
    results = json.loads((FOLDER / "results.json").read_text(encoding="utf-8"))
    assert (FOLDER / "README.md").read_text(encoding="utf-8") == page.readme(results)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ([], "--trl-python"),
        (["--trl-python", "/no/such/python"], "cannot be run"),
        (["--trl-python", "{a python without trl}"], "has no trl"),
        (["--trl-python", sys.executable, "--rounds", "0"], "--rounds must be >= 1"),
        (["--trl-python", sys.executable, "--settings", "huge"], "huge"),
    ],
)
def test_refusals(
    compare: ModuleType, capsys: pytest.CaptureFixture[str], tmp_path: Path, given: list[str], message: str
) -> None:
    without = tmp_path / "python"
    without.write_text("#!/bin/sh\necho 'PackageNotFoundError: trl' >&2\nexit 1\n")
    without.chmod(0o755)
    with pytest.raises(SystemExit) as stopped:
        compare.arguments([str(without) if "{" in word else word for word in given])
    assert stopped.value.code == 2
    said = capsys.readouterr().err
    assert message in said
    assert "pip install" in said or "rounds" in message or message in ("huge", "--trl-python")


def test_another_version_of_trl_is_refused(compare: ModuleType, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    other = tmp_path / "python"
    other.write_text("#!/bin/sh\necho 0.9.1 2.13.0\n")
    other.chmod(0o755)
    with pytest.raises(SystemExit):
        compare.arguments(["--trl-python", str(other)])
    assert "has trl 0.9.1, the comparison is with 1.16.0" in capsys.readouterr().err


def test_each_contestant_has_the_switches_of_its_title(compare: ModuleType) -> None:
    assert [*compare.CONTESTANTS] == [*compare.TRL_VARIANTS, *compare.page.OURS]
    for name, variant in compare.TRL_VARIANTS.items():
        title = compare.CONTESTANTS[name]
        assert ("attention switch" in title) == bool(variant["environment"])
        assert ("torch_compile" in title) == variant["compile"]
        assert ("one batch" in title) == (variant["accumulation"] == 1)


def test_sides_that_differ_are_refused(compare: ModuleType) -> None:
    same = {"threads": 2, "torch": "2.13.0", "transformers": "5.23.0", "parameters": 10}
    compare.check_equal({"grpo": same, "trl_whole": dict(same)})
    with pytest.raises(compare.ChildFailed, match="torch"):
        compare.check_equal({"grpo": same, "trl_whole": same | {"torch": "2.6.0"}})


CHILD = """
from turns import Turns
turns = Turns()
print("a library prints")
turns.ready(threads=1)
for number in range(9):
    turns.step_begins(lambda: {"number": number})
    if number == 2:
        raise ValueError("out of memory")
"""


def test_a_child_takes_turns_until_it_fails(compare: ModuleType, tmp_path: Path) -> None:
    environment = os.environ | {"PYTHONPATH": str(FOLDER)}
    with compare.Child.start("grpo", [sys.executable, "-c", CHILD], tmp_path, environment) as child:
        assert child.read()["threads"] == 1
        for number in (1, 2):
            report = child.step()
            assert report["number"] == number
            assert 0 < report["seconds"] < 60
            assert 0 <= report["cpu_seconds"] <= report["seconds"] + 0.1, "one thread"
            assert 2**20 < report["peak_bytes"] < 2**31
        with pytest.raises(compare.ChildFailed, match="out of memory"):
            child.step()
    assert "a library prints" in (tmp_path / "grpo.log").read_text()


class Shares:
    """In place of `Load`: what others are said to use, one step after the other."""

    def __init__(self, *shares: float | None) -> None:
        self.shares = list(shares)

    def __call__(self, session: int) -> Shares:
        return self

    def others(self) -> float | None:
        return self.shares.pop(0)


class Counting:
    """In place of `Child`: step n takes n seconds."""

    def __init__(self) -> None:
        self.steps = 0
        self.process = subprocess.CompletedProcess([], 0)
        self.process.pid = 1  # type: ignore[attr-defined]

    def step(self) -> dict[str, Any]:
        self.steps += 1
        return {"seconds": float(self.steps)}


@pytest.mark.parametrize(
    ("shares", "tries"), [((0.0,), 1), ((None,), 1), ((0.5, 0.11, 0.1), 3), ((0.5, 0.4, 0.3, 0.6, 0.7, 0.0), 5)]
)
def test_a_step_is_repeated_until_it_was_quiet(
    compare: ModuleType, monkeypatch: pytest.MonkeyPatch, shares: tuple[float | None, ...], tries: int
) -> None:
    monkeypatch.setattr(compare, "Load", Shares(*shares))
    made = compare.quiet_step(Counting(), "a step", patience=0.0)
    assert [report["others"] for report in made] == [*shares][:tries]
    assert [report["seconds"] for report in made] == [*range(1, tries + 1)]


def test_children_end_with_their_block(compare: ModuleType, tmp_path: Path) -> None:
    command = [sys.executable, "-c", "import time; time.sleep(600)"]
    with pytest.raises(KeyboardInterrupt), compare.Child.start("grpo", command, tmp_path, dict(os.environ)) as child:
        raise KeyboardInterrupt
    assert child.process.returncode != 0
