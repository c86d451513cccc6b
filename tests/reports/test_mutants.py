"""Mutants: how they are drawn, what tests say of them, and what the page makes of it."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest
from support.study_scripts import REPORTS, load_script

ROOT = REPORTS.parent
measure = load_script("mutants")

SOURCE = """\
from dataclasses import dataclass

@dataclass(frozen=True)
class Half:
    step: int | None = 2

    def __call__(self, n: int | str) -> int | None:
        return n // self.step if n | 1 else None
"""


def mutant(file: str, diff: str, result: str) -> object:
    return measure.Mutant(file, 7, "AddNot", 0, "abc", diff, result, "0.5")


def test_shares_add_up_and_are_in_proportion() -> None:
    assert measure.shares({"a": 5, "b": 3, "c": 2}, 4) == {"a": 2, "b": 1, "c": 1}
    assert measure.shares({"a": 2, "b": 2}, 3) == {"a": 2, "b": 1}
    counts = {str(i): random.Random(i).randrange(1, 50) for i in range(20)}
    found = measure.shares(counts, 97)
    assert sum(found.values()) == 97
    assert all(abs(found[file] - 97 * n / sum(counts.values())) < 1 for file, n in counts.items())


def test_places_leave_out_the_bars_of_types() -> None:
    pytest.importorskip("cosmic_ray")
    places = measure.places_of("half.py", SOURCE)
    changes = {(place.line, name) for place in places for name, _ in place.changes}
    assert {(3, "RemoveDecorator"), (3, "ReplaceTrueWithFalse"), (5, "NumberReplacer")} <= changes
    assert (8, "ReplaceBinaryOperator_FloorDiv_Mul") in changes
    assert {line for line, name in changes if "BitOr" in name} == {8}
    drawn = measure.drawn(SOURCE, places, 3, "0")
    assert drawn == measure.drawn(SOURCE, places, 3, "0")
    assert len({m.line for m in measure.drawn(SOURCE, places, 99, "0")}) == 3
    assert "\n" not in "".join(m.diff for m in drawn)


def test_what_is_no_python_is_no_mutant() -> None:
    assert measure.is_python("x = 1 is 2")
    assert not measure.is_python("x = {<<y}")


def test_lines_that_change() -> None:
    assert measure.changed_lines("a\n  b + 1\nc\n", "a\n  b - 1\nc\n") == "b + 1 -> b - 1"
    assert measure.changed_lines("\n@property\ndef f(): ...\n", "\n\ndef f(): ...\n") == "@property -> nothing"


def test_a_mutant_is_killed_by_a_test_that_fails_and_its_file_is_as_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    texts = {
        "half": "def half(n):\n    return n // 2\n",
        "test_half": "from half import half\n\ndef test_half():\n    assert half(4) == 2\n",
    }
    for name, text in texts.items():
        (tmp_path / f"{name}.py").write_text(text, encoding="utf-8")
    changes = iter(("n % 2", "n >> 1"))
    monkeypatch.setattr(measure, "mutated", lambda source, *_: source.replace("n // 2", next(changes)))
    trials = measure.Trials(tmp_path, [])
    try:
        results = [trials.try_out(mutant("half.py", "", ""), Path("half.py"), ("test_half.py",)).result for _ in range(2)]
        assert results == ["killed", "survived"]
        (tmp_path / "test_half.py").write_text("import time\n\ndef test_half():\n    time.sleep(60)\n", encoding="utf-8")
        assert trials.run(["test_half.py"], 0.2)[0] is None
        with pytest.raises(RuntimeError, match=r"without a mutant, `pytest none\.py`"):
            trials.normal_seconds(("none.py",))
    finally:
        trials.close()
    assert (tmp_path / "half.py").read_text(encoding="utf-8") == texts["half"]


def test_the_table_counts_rooms_and_explains_survivors(tmp_path: Path) -> None:
    mutants = [
        mutant("answers/a.py", "x -> y", "killed"),
        mutant("answers/a.py", "x | 1 -> y", "survived"),
        mutant("rollout/b.py", "while True: -> while 1:", "timeout"),
        mutant("rollout/b.py", "u -> v", "survived"),
    ]
    measure.write(tmp_path / "m.csv", mutants)
    assert measure.read(tmp_path / "m.csv") == mutants
    text = measure.table(
        mutants, {"answers/a.py": 30, "answers/c.py": 1, "rollout/b.py": 12}, {"rollout/b.py: u -> v": "The same."}
    )
    # Wilson by hand for 2 of 4: middle 0.5, half 1.96 / 7.8415 * sqrt(1 + 0.9604) = 0.35
    assert "| all | 3 | 43 | 4 | 1 | 1 | 2 | 50.0 % [15.0, 85.0] |" in text
    assert "| answers | 2 | 31 | 2 | 1 | 0 | 1 |" in text
    assert "| answers/a.py:7 | `` x \\| 1 -> y `` | not explained |" in text
    assert "| rollout/b.py:7 | `` u -> v `` | The same. |" in text


def test_files_and_tests_are_there() -> None:
    for file in measure.PURE:
        assert (ROOT / "oar_lightning" / file).is_file(), file
        tests = measure.tests_of(file, ROOT)
        assert len(tests) > len(measure.OF_ALL), f"no tests of {file}"
        assert all((ROOT / name).is_file() for name in tests), file


def test_what_is_committed_meets_the_bar_and_is_explained() -> None:
    mutants = measure.read(measure.FOUND)
    survivors = [mutant for mutant in mutants if mutant.result == "survived"]
    reasons = json.loads((REPORTS / "mutants" / "reasons.json").read_text(encoding="utf-8"))
    assert len(mutants) == measure.SIZE
    assert len(survivors) <= 0.05 * len(mutants)
    assert {mutant.change for mutant in survivors} == set(reasons)
