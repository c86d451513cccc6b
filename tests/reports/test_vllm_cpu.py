"""The decoding loop against vLLM on a CPU: what becomes of the measured turns, repeated turns, and the committed page."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pytest
from support.study_scripts import REPORTS, load_script

from oar_lightning.common.markdown import MARKS

measure = load_script("vllm_cpu")


def turn(tokens: int, seconds: float, weights: float = 0.0, others: float = 0.0) -> dict[str, Any]:
    return {
        "tokens": tokens,
        "seconds": seconds,
        "weights": [weights],
        "cpu": 2 * seconds,
        "peak_mb": 1000 * seconds,
        "others": others,
    }


def way(first: float, *turns: dict[str, Any]) -> dict[str, Any]:
    return {"first": first, "turns": {str(rows): list(turns) for rows in measure.CALLS}}


WAYS = {
    "own": way(0.5, turn(100, 1.0), turn(100, 2.0), turn(100, 4.0)),
    "engine": way(30.0, turn(100, 2.0, weights=1.0), turn(200, 2.0, weights=0.5), turn(100, 1.0, weights=0.5)),
}


def test_ratios_are_of_turns_of_the_same_round() -> None:
    """Rates of 100, 50, 25 and of 50, 100, 100."""
    assert measure.ratios(WAYS["engine"]["turns"]["16"], WAYS["own"]["turns"]["16"]) == [0.5, 2.0, 4.0]
    with pytest.raises(ValueError, match="zip"):
        measure.ratios([turn(1, 1.0)], [turn(1, 1.0)] * 2)


def test_tables() -> None:
    header, own, engine = measure.rate_table(WAYS)
    assert own[1:3] == ["50 (25 to 100)", "1"]
    assert engine[header.index("tokens/s, 256 rows") :] == ["100 (50 to 100)", "2.00 (0.50 to 4.00)", "30.0", "2000"]
    header, engine = measure.weight_table(WAYS)
    assert engine[1:3] == ["500.0 (500.0 to 1000.0)", "133 (100 to 200)"]
    _, own, _ = measure.processor_table(WAYS)
    assert own[1] == "25 (12 to 50)"


@pytest.mark.parametrize(
    ("shares", "tries", "made"), [((0.0,), 5, 1), ((None,), 5, 1), ((0.5, 0.2, 0.1), 5, 3), ((0.5, 0.5), 2, 2), ((0.5,), 1, 1)]
)
def test_a_turn_is_repeated_until_it_was_quiet(
    monkeypatch: pytest.MonkeyPatch, shares: tuple[float | None, ...], tries: int, made: int
) -> None:
    left, waits = list(shares), []
    monkeypatch.setattr(measure, "Load", lambda process: SimpleNamespace(others=lambda: left.pop(0)))
    monkeypatch.setattr(measure, "wait_for_quiet", lambda patience: waits.append(patience) or 3.0)
    child = SimpleNamespace(process=SimpleNamespace(pid=1), step=lambda order: {"tokens": 1, "seconds": 1.0})
    turns, patience = measure.quiet_turns(child, "a turn", measure.order(16, 1), tries, 10.0)
    assert [report["others"] for report in turns] == list(shares)
    assert len(turns) == made
    assert patience == 10.0 - 3.0 * (made - 1) == 10.0 - 3.0 * len(waits)


def test_the_page_says_how_quiet_it_was() -> None:
    quiet = {"rounds": 3, "repeated": 1, "ways": WAYS}
    assert measure.rounds_text(quiet) == "3 rounds; 1 turns did not count (not quiet)."
    loud = quiet | {"ways": {"own": way(0.5, turn(1, 1.0, others=0.5), turn(1, 1.0))}}
    assert measure.rounds_text(loud).endswith("**3 of the 6 turns that count were not quiet**.")


def test_the_page_in_the_repository_is_that_of_its_results() -> None:
    folder = REPORTS / "vllm_cpu"
    results = json.loads((folder / "results.json").read_text(encoding="utf-8"))
    generated = (folder / "README.md").read_text(encoding="utf-8").split(MARKS[0])[1].split(MARKS[1])[0]
    assert generated == f"\n{measure.page(results)}\n"
