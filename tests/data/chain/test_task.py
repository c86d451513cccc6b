"""The built-in task: problems against an independent reading of their text, splits, solutions and their causal tokens."""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
import random
import re
from typing import Any

import pytest

from oar_lightning.answers.span import gold_answer
from oar_lightning.data.chain.task import ChainProblem, ChainProblems, ChainTask
from oar_lightning.data.generated import Solution
from oar_lightning.data.stream import ProblemSource, is_endless

UP, DOWN = {"finds", "buys", "gets", "wins"}, {"loses", "sells", "eats", "drops"}
WIDE = ChainTask(max_total=200, noise=0.3)  # far from both ends, a result can always be off by one


def read(question: str) -> tuple[int, list[int]]:
    """Start and changes, from the question's words only."""
    first, *rest = re.findall(r"\w+ (\w+) (\d+)", question)
    assert first[0] == "has"
    assert all(verb in UP | DOWN for verb, _ in rest)
    return int(first[1]), [int(n) if verb in UP else -int(n) for verb, n in rest]


def draw(task: ChainTask, count: int, held_out: bool = False) -> list[ChainProblem]:
    rng = random.Random(0)
    return [task.problem(rng, held_out) for _ in range(count)]


def steps(text: str) -> list[tuple[int, int, int]]:
    """Every ``a+b=c`` as (a, signed b, c)."""
    return [(int(a), int(s + b), int(c)) for a, s, b, c in re.findall(r"(\d+)([+-])(\d+)=(\d+)", text)]


@pytest.mark.parametrize("split", ["train", "held_out"])
def test_answers_are_right(split: str) -> None:
    source = ChainProblems(ChainTask(), split)
    for i in range(300):
        start, changes = read(source[i].question)
        assert int(source[i].answer) == start + sum(changes)
        assert source[i].level == str(len(changes))
        assert source[i].source == "chain"


def test_problems_stay_in_range() -> None:
    task = ChainTask(min_steps=3, max_steps=6, max_total=12, max_delta=5)
    lengths = set()
    for problem in draw(task, 500):
        total, changes = read(problem.question)
        assert 1 <= total <= 12
        lengths.add(len(changes))
        for change in changes:
            assert 1 <= abs(change) <= 5
            total += change
            assert 0 <= total <= 12
    assert lengths == {3, 4, 5, 6}


def test_no_training_problem_is_held_out() -> None:
    """The numbers decide, so that no held-out problem is a training one with another name in it."""
    train, held_out = ({(p.start, p.deltas) for p in draw(ChainTask(), 3000, held)} for held in (False, True))
    assert len(held_out) > 500
    assert not train & held_out
    problem = draw(ChainTask(), 1, held_out=True)[0]
    assert dataclasses.replace(problem, name="Zoe", item="kites", verbs=("finds",) * len(problem.verbs)).held_out


def test_one_problem_in_eight_is_held_out() -> None:
    numbers = {(start, (a, b)) for start in range(1, 40) for a in range(1, 10) for b in range(1, 10)}
    share = sum(ChainProblem("", "", s, d, ()).held_out for s, d in numbers) / len(numbers)
    assert share == pytest.approx(1 / 8, abs=0.02)


def test_a_task_too_small_for_both_splits_is_an_error_not_a_hang() -> None:
    task = ChainTask(min_steps=1, max_steps=1, max_total=1, max_delta=1)
    held_out = ChainProblem("", "", 1, (-1,), ("",)).held_out
    assert task.problem(random.Random(0), held_out).deltas == (-1,)
    with pytest.raises(ValueError, match=r"data\.chain\.max_total=1.*raise one of them"):
        task.problem(random.Random(0), not held_out)


@pytest.mark.parametrize("filler", [0, 1, 2, 3])
@pytest.mark.parametrize("restate", [True, False])
def test_without_noise_solutions_are_right(filler: int, restate: bool) -> None:
    task = ChainTask(filler=filler, restate=restate)
    rng = random.Random(1)
    for problem in draw(task, 100):
        text = task.solution(problem, rng, noise=0.0).text
        start, changes = read(problem.question)
        assert gold_answer(text) == str(start + sum(changes))
        totals = [start + sum(changes[:i]) for i in range(len(changes) + 1)]
        if restate:
            assert steps(text) == list(zip(totals, changes, totals[1:], strict=False))
        else:
            assert [int(c) for c in re.findall(r"=(\d+)", text)] == totals[1:]
            assert [int(a) for a in re.findall(r"(\d+)[+-]", text)] == [start]


def test_an_answer_of_each_total_is_all_that_differs() -> None:
    last, each = ChainTask(noise=0.3), ChainTask(noise=0.3, ask="each")
    for i in range(200):
        one, many = ChainProblems(last)[i], ChainProblems(each)[i]
        start, changes = read(many.question)
        assert many.question == one.question.replace("are left?", "are left each time?")
        assert many.answer == ", ".join(str(start + sum(changes[:n])) for n in range(1, len(changes) + 1))
        stated = ", ".join(re.findall(r"=(\d+)", many.solution))
        assert many.solution.rpartition("{")[0] == one.solution.rpartition("{")[0]
        assert gold_answer(many.solution) == stated, "the answer is what the steps state, right or wrong"


def test_the_causal_tokens_of_an_answer_are_its_numbers() -> None:
    task, rng = ChainTask(ask="each"), random.Random(3)
    for problem in draw(task, 50):
        found = task.solution(problem, rng)
        answer = found.text.rindex("{") + 1
        numbers = [found.text[a:b] for a, b in found.causal_spans if a >= answer]
        assert ", ".join(numbers) == gold_answer(found.text)


def test_filler_adds_words_only() -> None:
    words: list[float] = []
    equations: list[list[list[str]]] = []
    for filler in range(4):
        task = ChainTask(filler=filler)
        solutions = [task.solution(p, random.Random(2), noise=0.0) for p in draw(task, 50)]
        lines = [line for s in solutions for line in s.text.splitlines()[:-1]]
        words.append(sum(len(line.split()) for line in lines) / len(lines))
        equations.append([re.findall(r"[\d+=-]+", s.text) for s in solutions])
    assert all(e == equations[0] for e in equations)
    assert words[0] == 2.0
    assert words == sorted(words)
    assert words[3] > words[2] + 1 > words[1] + 2 > words[0] + 2.5


@pytest.mark.parametrize("noise", [0.1, 0.5])
def test_noise_is_the_rate_of_wrong_steps(noise: float) -> None:
    rng = random.Random(3)
    wrong = total = 0
    for problem in draw(WIDE, 1500):
        taken = steps(WIDE.solution(problem, rng, noise).text)
        assert all(c == a + b or abs(c - a - b) == 1 for a, b, c in taken)
        assert [b for _, b, _ in taken] == list(problem.deltas)
        assert all(before[2] == after[0] for before, after in itertools.pairwise(taken)), "errors are carried on"
        wrong += sum(c != a + b for a, b, c in taken)
        total += len(taken)
    assert wrong / total == pytest.approx(noise, abs=4 * (noise * (1 - noise) / total) ** 0.5)


def test_noisy_solutions_stay_in_range_and_state_their_own_result() -> None:
    task = ChainTask(max_total=10, max_delta=5, noise=0.8)
    rng = random.Random(4)
    for problem in draw(task, 500):
        text = task.solution(problem, rng).text
        taken = steps(text)
        assert all(0 <= number <= 10 for a, _, c in taken for number in (a, c))
        assert gold_answer(text) == str(taken[-1][2])


def test_the_tasks_noise_is_the_default() -> None:
    problem = draw(WIDE, 1)[0]
    noisy, clean = dataclasses.replace(WIDE, noise=0.99), dataclasses.replace(WIDE, noise=0.0)
    assert clean.solution(problem, random.Random(0)).text == noisy.solution(problem, random.Random(0), 0.0).text
    assert noisy.solution(problem, random.Random(0)).text != clean.solution(problem, random.Random(0)).text


@pytest.mark.parametrize("filler", [0, 3])
@pytest.mark.parametrize("restate", [True, False])
def test_causal_spans_are_the_numbers_and_operators(filler: int, restate: bool) -> None:
    task = ChainTask(filler=filler, restate=restate)
    rng = random.Random(5)
    for problem in draw(task, 100):
        solution: Solution = task.solution(problem, rng)
        assert [m.span() for m in re.finditer(r"\d+|[+-]", solution.text)] == list(solution.causal_spans)


def test_the_default_problems_are_the_ones_that_the_shipped_policy_learned_from() -> None:
    """New options may not change what the old ones draw."""
    digest = hashlib.sha256()
    for split in ("train", "held_out"):
        source = ChainProblems(ChainTask(), split)
        for i in range(100):
            fields = dataclasses.asdict(source[i])
            digest.update(repr([fields[k] for k in ("question", "answer", "solution", "source", "level", "id")]).encode())
    assert digest.hexdigest() == "2ae81eea544e05476bbcf740a7c51045c4718af7bff1c79e9e65943851a046fd"


@pytest.mark.parametrize("restate", [True, False])
@pytest.mark.parametrize("last", [True, False])
def test_asides_are_sentences_without_numbers(restate: bool, last: bool) -> None:
    plain = ChainTask(restate=restate, noise=0.0)
    task = dataclasses.replace(plain, asides=3, asides_last=last)
    for problem in draw(task, 50):
        solution = task.solution(problem, random.Random(6))
        assert [m.span() for m in re.finditer(r"\d+|[+-]", solution.text)] == list(solution.causal_spans)
        lines = solution.text.splitlines()
        asides = [i for i, line in enumerate(lines) if re.fullmatch(r"[A-Z][a-z]+ [A-Z][a-z]+ [a-z]+ [a-z]+\.", line)]
        n = len(problem.deltas)
        expected = range(n, 4 * n) if last else [i for i in range(4 * n) if i % 4]
        assert asides == list(expected)
        numbers = [re.findall(r"\d+", t) for t in (solution.text, plain.solution(problem, random.Random(6)).text)]
        assert numbers[0] == numbers[1], "the rest is as without them"


def written(text: str) -> tuple[bool, bool]:
    """Whether a solution of three steps repeats its totals, and whether its asides come last."""
    lines = text.splitlines()
    return len(re.findall(r"\d+[+-]", text)) == 3, all(re.search(r"\d", line) for line in lines[:3])


def test_a_told_form_is_the_solutions() -> None:
    task = ChainTask(min_steps=3, max_steps=3, asides=1, restate="either", asides_last="either", tell_form=True)
    seen: dict[str, set[tuple[bool, bool]]] = {}
    for problem in draw(task, 200):
        asked, told = problem.question.split("\n")
        assert asked.endswith("left?")
        seen.setdefault(told, set()).add(written(task.solution(problem, random.Random(0)).text))
    assert seen == {
        "Repeat totals. Asides between.": {(True, False)},
        "Repeat totals. Asides last.": {(True, True)},
        "Omit totals. Asides between.": {(False, False)},
        "Omit totals. Asides last.": {(False, True)},
    }


def test_the_problems_are_the_same_in_all_forms() -> None:
    forms = [ChainTask(restate=r, asides_last=last, tell_form=True) for r in (True, False) for last in (True, False)]
    asked = [[problem.question.split("\n")[0] for problem in draw(task, 20)] for task in (ChainTask(), *forms)]
    assert all(questions == asked[0] for questions in asked)


def test_the_words_of_asides_are_drawn_freely() -> None:
    task = ChainTask(asides=4, filler=0, noise=0.0)
    lines = [
        line.rstrip(".").split()
        for p in draw(task, 300)
        for line in task.solution(p, random.Random(str(p))).text.splitlines()
        if not re.search(r"\d", line)
    ]
    assert [len(set(words)) for words in zip(*lines, strict=True)] == [6, 8, 8, 8]


@pytest.mark.parametrize("kind", ["distracts", "counts"])
def test_a_companions_numbers_matter_only_where_they_are_asked_for(kind: str) -> None:
    task = ChainTask(companion=kind, noise=0.0)  # type: ignore[arg-type]
    for problem in draw(task, 200):
        # from the words alone: who has and does what
        start: dict[str, int] = {}
        changes: dict[str, list[int]] = {}
        for name, verb, number in re.findall(r"(\w+) (\w+) (\d+)", problem.question):
            if verb == "has":
                start[name] = int(number)
            else:
                changes.setdefault(name, []).append(int(number) if verb in UP else -int(number))
        assert len(start) == 2
        assert len({len(c) for c in changes.values()}) == 1
        totals = {name: start[name] + sum(changes[name]) for name in start}
        assert all(0 <= start[n] + sum(changes[n][:i]) <= 20 for n in start for i in range(len(changes[n]) + 1))
        expected = sum(totals.values()) if kind == "counts" else totals[problem.name]
        assert problem.answer == expected
        assert (f"has {problem.name}?" in problem.question) == (kind == "distracts")
        solution = task.solution(problem, random.Random(7))
        assert gold_answer(solution.text) == str(expected)
        for name in start:
            own = re.findall(rf"{name}: (\d+)([+-])(\d+)=(\d+)", solution.text)
            sums = list(itertools.accumulate(changes[name], initial=start[name]))
            assert [(int(a), int(s + b), int(c)) for a, s, b, c in own] == list(
                zip(sums, changes[name], sums[1:], strict=False)
            )
        lines = {solution.text.count("\n", 0, a) for a, _ in solution.causal_spans[:-1]}
        owners = {solution.text.splitlines()[i].split(":")[0].split()[-1] for i in lines}
        assert owners == (set(start) if kind == "counts" else {problem.name})


def test_random_access_is_deterministic() -> None:
    source, again, other = (ChainProblems(ChainTask(), seed=seed) for seed in (3, 3, 4))
    order = [7, 2, 7, 0, 10**9]
    assert [source[i] for i in order] == [again[i] for i in order]
    assert source[7] == source[7]
    texts = {source[i].question for i in range(200)}
    assert len(texts) > 190
    assert sum(other[i].question in texts for i in range(200)) < 10
    held_out = ChainProblems(ChainTask(), "held_out", seed=3)
    assert held_out[0].question != source[0].question
    assert len({source[i].id for i in range(50)} | {held_out[i].id for i in range(50)}) == 100
    assert isinstance(source, ProblemSource)
    assert is_endless(source)


def test_streams_are_the_problems_by_index() -> None:
    source = ChainProblems(ChainTask(), seed=3)
    assert list(itertools.islice(source, 4)) == [source[i] for i in range(4)]
    assert list(itertools.islice(source.shuffled(9, 9, 5), 4)) == [source[i] for i in range(5, 9)]
    finite = ChainProblems(ChainTask(), seed=3, size=6)
    assert not is_endless(finite)
    assert list(finite) == [source[i] for i in range(6)]
    order = list(finite.shuffled(1, 0))
    assert sorted(p.id for p in order) == sorted(p.id for p in finite)
    assert order != list(finite)
    assert list(finite.shuffled(1, 0, 4)) == order[4:]


@pytest.mark.parametrize(
    ("arguments", "keys"),
    [
        ({"min_steps": 0}, ["data.chain.min_steps", "got 0"]),
        ({"min_steps": 5}, ["data.chain.min_steps", "max_steps=4"]),
        ({"filler": 4}, ["data.chain.filler", "[0, 3]", "got 4"]),
        ({"noise": 1.0}, ["data.chain.noise", "got 1.0"]),
        ({"noise": -0.1}, ["data.chain.noise", "got -0.1"]),
        ({"max_delta": 21}, ["data.chain.max_delta", "max_total=20"]),
        ({"asides": -1}, ["data.chain.asides", "got -1"]),
        ({"companion": "helps"}, ["data.chain.companion", "distracts", "got 'helps'"]),
        ({"max_delta": 0}, ["data.chain.max_delta", "got 0"]),
        ({"restate": "both"}, ["data.chain.restate", "true or false or either", "got 'both'"]),
        ({"ask": "each", "companion": "counts"}, ["data.chain.ask=each", "companion=counts"]),
        ({"ask": "all"}, ["data.chain.ask", "got 'all'"]),
        ({"asides_last": "either"}, ["asides_last=either", "set data.chain.tell_form=true"]),
    ],
)
def test_bad_settings_name_their_key(arguments: dict[str, Any], keys: list[str]) -> None:
    with pytest.raises(ValueError, match="data") as caught:
        ChainTask(**arguments)
    assert all(key in str(caught.value) for key in keys)
