"""Columns, dotted paths, dropped rows, and errors that name what is there."""

from __future__ import annotations

from collections import Counter
from datetime import date, datetime
from decimal import Decimal
from typing import Any

import numpy
import pytest

from oar_lightning.data.rows import NO_ANSWER, NO_QUESTION, Columns, lookup, paths, problems_of, to_problem
from oar_lightning.types import MathProblem

NESTED = {
    "prompt": [{"role": "system", "content": "Think."}, {"role": "user", "content": "1+1?"}],
    "reward_model": {"ground_truth": "2", "style": "rule"},
    "extra.info": {"index": 7},
}


WIDE: dict[str, Any] = {
    "q": "1+1?",
    "a": "2",
    "level": "easy",
    "source": "mine",
    "steps": 2,
    "meta": {"tags": ["x", None], "when": datetime(2026, 1, 2)},
    "price": Decimal("1.50"),
    "vector": numpy.array([1.5, 2.0]),
    "picture": b"png",
}


def extra(row: dict[str, Any], columns: Columns) -> dict[str, Any]:
    made = to_problem(row, columns, "set", "x:1")
    assert isinstance(made, MathProblem)
    return made.extra.thawed()  # type: ignore[attr-defined]


def test_all_columns_that_nothing_names_are_extra(caplog: pytest.LogCaptureFixture) -> None:
    found = extra(WIDE, Columns("q", "a", None, "level"))
    assert found == {
        "source": "mine",
        "steps": 2,
        "meta": {"tags": ["x", None], "when": "2026-01-02 00:00:00"},
        "price": "1.50",
        "vector": [1.5, 2.0],
    }
    assert list(found) == ["source", "steps", "meta", "price", "vector"], "in the row's order"
    extra(WIDE, Columns("q", "a", None, "level"))
    assert caplog.text.count("column 'picture' of set holds a bytes; problem.extra is without it") == 1
    nested = {"prompt": [{"content": "?"}], "reward_model": {"ground_truth": "1", "style": "rule"}}
    assert extra(nested, Columns("prompt.0.content", "reward_model.ground_truth", None)) == nested, "what is read in part stays"


def test_a_column_of_any_depth_kills_nothing(caplog: pytest.LogCaptureFixture) -> None:
    deep: Any = 1
    for _ in range(500):
        deep = {"x": [deep]}
    assert extra({"q": "?", "a": "1", "deep": deep}, Columns("q", "a", None)) == {}
    assert "column 'deep' of set holds a value within 50 others" in caplog.text


def test_named_columns_are_extra() -> None:
    assert extra(WIDE, Columns("q", "a", None, extra=["steps", "meta.tags.0"])) == {"steps": 2, "meta.tags.0": "x"}
    assert extra(WIDE, Columns("q", "a", None, extra="level")) == {"level": "easy"}
    assert extra(WIDE, Columns("q", "a", None, extra=[])) == {}
    assert error(WIDE, Columns("q", "a", None, extra=["step"])).startswith("x:1 has no column 'step'; it has ['a', 'level',")
    assert error(WIDE, Columns("q", "a", None, extra=["picture"])) == (
        "x:1 holds a bytes in column 'picture', which problem.extra cannot; leave it out of extra_columns"
    )


def error(row: dict[str, Any], columns: Columns) -> str:
    with pytest.raises(ValueError, match="column") as caught:
        to_problem(row, columns, "s", "x:1")
    return str(caught.value)


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("prompt.0.content", "Think."),
        ("prompt.1.content", "1+1?"),
        ("prompt.-1.content", "1+1?"),
        ("prompt.2.content", None),
        ("reward_model.ground_truth", "2"),
        ("extra.info", {"index": 7}),  # a name with a dot in it is a name first
    ],
)
def test_dotted_paths(path: str, value: Any) -> None:
    assert lookup(NESTED, path) == value


@pytest.mark.parametrize(
    "path", ["question", "reward_model.answer", "reward_model.style.deep", "prompt.content", "prompt.0.text"]
)
def test_paths_that_lead_nowhere(path: str) -> None:
    with pytest.raises(KeyError):
        lookup(NESTED, path)


def test_null_on_the_way_is_null() -> None:
    assert lookup({"a": None}, "a.b.0.c") is None
    assert lookup({"a": []}, "a.0.b") is None
    assert lookup({"a": [1, 2]}, "a.-5") is None
    assert [lookup({"a": [1, 2]}, f"a.{i}") for i in (-2, -1, 0, 1, 2)] == [1, 2, 1, 2, None]


def test_everything_a_row_has() -> None:
    assert paths(NESTED) == [
        "extra.info.index",
        "prompt.0.content",
        "prompt.0.role",
        "reward_model.ground_truth",
        "reward_model.style",
    ]
    assert paths({"b": None, "a": [], "c": {}}) == ["a", "b", "c"]


def test_a_nested_row() -> None:
    row = {k.replace(".", "_"): v for k, v in NESTED.items()}
    columns = Columns("prompt.-1.content", "reward_model.ground_truth", None, "extra_info.index", "reward_model.style")
    assert to_problem(row, columns, "s", "x:1") == MathProblem("1+1?", "2", "", "s", "7", "rule", extra=row)


@pytest.mark.parametrize(
    ("solution", "answer"),
    [
        ("48/2 = <<48/2=24>>24\n48+24 = 72\n#### 72", "72"),  # GSM8K
        ("#### 1,234", "1,234"),
        ("so $x = \\boxed{\\frac{1}{2}}$.", "\\frac{1}{2}"),  # MATH
        ("\\boxed{1} and then \\boxed{2}", "2"),
        ("\\fbox{3}", None),
        ("\\boxed{}", None),
        ("", None),
    ],
)
def test_the_answer_from_the_solution(solution: str, answer: str | None) -> None:
    made = to_problem({"q": "?", "s": solution}, Columns("q", None, "s"), "", "x:1")
    assert (made.answer if isinstance(made, MathProblem) else None) == answer
    assert answer is not None or made == NO_ANSWER


def test_names_and_sources() -> None:
    columns = Columns("q", "a", None)
    plain = {"q": "?", "a": 1}
    made = [to_problem(row, columns, "set", "x:1") for row in (plain, plain | {"id": 0, "source": "own"}, plain | {"id": None})]
    assert [(p.source, p.id) for p in made if isinstance(p, MathProblem)] == [("set", "x:1"), ("own", "0"), ("set", "x:1")]
    named = to_problem(plain | {"unique_id": "u/1.json"}, Columns("q", "a", None, id="unique_id"), "set", "x:1")
    assert isinstance(named, MathProblem)
    assert named.id == "u/1.json"


def test_drops_are_counted_and_the_limit_counts_what_is_kept() -> None:
    rows = [("1", {"q": "", "a": "1"}), ("2", {"q": "?", "a": None}), *((str(i), {"q": f"{i}?", "a": i}) for i in range(3, 9))]
    for limit, kept in ((None, 6), (2, 2)):
        dropped: Counter[str] = Counter()
        assert len(list(problems_of(rows, Columns("q", "a", None), "", dropped, limit))) == kept
        assert dropped == {NO_QUESTION: 1, NO_ANSWER: 1}


def test_errors_say_what_is_there_and_what_to_set() -> None:
    row = {k.replace(".", "_"): v for k, v in NESTED.items()}
    available = "['extra_info.index', 'prompt.0.content', 'prompt.0.role', 'reward_model.ground_truth', 'reward_model.style']"
    assert error(row, Columns("problem", "reward_model.ground_truth", None)) == (
        f"question_column=problem: x:1 has no such column; it has {available}: set it to one of them"
    )
    assert error(row, Columns("prompt.0.content", "answer", None)).endswith(": set it to one of them or to null")
    assert error(row, Columns("prompt", "reward_model.ground_truth", None)) == (
        "question_column=prompt: x:1 holds a list there; set it to a path into it, one of ['prompt.0.content', 'prompt.0.role']"
    )
    for same in (Columns.answer, Columns.solution):
        with pytest.raises(ValueError, match=f"question_column={same} is the column of the answer or the solution, too"):
            Columns(question=str(same))
    with pytest.raises(ValueError, match="answer_column=null takes the gold answer from the solution, so solution_column must"):
        Columns(answer=None, solution=None)


@pytest.mark.parametrize("value", [b"text", True, date(2024, 1, 5)])
@pytest.mark.parametrize("column", ["problem", "answer"])
def test_a_text_is_a_text_or_a_number(column: str, value: Any) -> None:
    row = {"problem": "q", "answer": "1", column: value}
    with pytest.raises(ValueError, match=r"_column=.* there; it has to be a text or a number"):
        to_problem(row, Columns(solution=None), "set", "set:1")


def test_infinite_answers_are_written_as_answers_are() -> None:
    rows = [to_problem({"problem": "q", "answer": a * float("inf")}, Columns(solution=None), "set", "x") for a in (1, -1)]
    assert [row.answer for row in rows if isinstance(row, MathProblem)] == [r"\infty", r"-\infty"]


def test_an_id_or_a_level_may_be_a_date_and_an_id_that_nobody_named_anything() -> None:
    row = {"problem": "q", "answer": "1", "id": date(2024, 1, 5), "level": date(2024, 1, 6)}
    found = to_problem(row, Columns(solution=None, level="level"), "set", "set:1")
    assert isinstance(found, MathProblem)
    assert (found.id, found.level) == ("2024-01-05", "2024-01-06")
    unnamed = to_problem({"problem": "q", "answer": "1", "id": b"x"}, Columns(solution=None), "set", "set:1")
    assert isinstance(unnamed, MathProblem)
    assert unnamed.id == "set:1"
    with pytest.raises(ValueError, match="id_column=id: set:1 holds a bytes there"):
        to_problem({"problem": "q", "answer": "1", "id": b"x"}, Columns(solution=None, id="id"), "set", "set:1")
