"""Answer spans in texts and regions of tokens."""

from __future__ import annotations

import itertools
import time
from collections.abc import Sequence

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from oar_lightning.answers.span import AnswerFormat, AnswerSpan, Region, find_answer, gold_answer, token_regions


def found(text: str, answer_format: AnswerFormat = AnswerFormat(), complete: bool = True) -> tuple[str, str] | None:
    """The conclusion's and the answer's text."""
    span = find_answer(text, answer_format, complete)
    return None if span is None else (text[span.conclusion : span.start], text[span.start : span.end])


# text, conclusion, answer; a conclusion of None: no answer
CASES = [
    ("The answer is 18, because 9*2=18.", "The answer is ", "18"),
    ("The answer is $x=5$ since 5 is prime.", "The answer is $", "x=5"),
    ("The answer is 7 since\n7 is prime.", "The answer is ", "7"),
    ("So \\boxed{18\\$}.", "\\boxed{", "18\\$"),
    ("So \\boxed{12}\n\n#### 2. Verification\nok", "\\boxed{", "12"),
    ("The answer is 12.\n\n#### Step 2: add\nmore", "The answer is ", "12"),
    ("So 12.\n#### 12", "#### ", "12"),
    ("So \\boxed{17}.\n#### 18. The total.", "#### ", "18"),
    ("So \\boxed{5}.", "\\boxed{", "5"),
    ("So \\boxed{Answer: 5}", "\\boxed{", "Answer: 5"),
    ("So \\boxed{\\text{The answer is }5}.", "\\boxed{", "\\text{The answer is }5"),
    ("The answer is $18$, as required.", "The answer is $", "18"),
    ("The answer is $18 a day", "The answer is $", "18 a day"),
    ("The answer is $18 or $20.", "The answer is $", "18 or $20"),
    ("First \\boxed{4}, no: \\boxed{5} it is.", "\\boxed{", "5"),
    ("\\boxed{5} so 5, that is 5 again.", "\\boxed{", "5"),
    ("\\boxed{4}. The answer is 5.", "The answer is ", "5"),
    ("The answer is 4. Wait: #### 5", "#### ", "5"),
    ("#### 4\nSo \\boxed{5}", "\\boxed{", "5"),
    ("So \\boxed{18}.\n\nThe answer is therefore 18.", "The answer is therefore ", "18"),
    ("So \\boxed{18}. Thus the answer is not 6.", "\\boxed{", "18"),
    ("\\boxed{18}\n\nNote: the answer is over 9.", "\\boxed{", "18"),
    ("The answer is clearly $18$.", "The answer is clearly $", "18"),
    ("The answer is approximately -1.5.", "The answer is approximately ", "-1.5"),
    ("The answer is therefore **18**.", "The answer is therefore **", "18"),
    ("The answer is just right, and no number at all.", None, None),
    ("The answer is **42** dollars.", "The answer is **", "42** dollars"),
    ("5 + 0 = 5 so 5. The answer is 5.", "The answer is ", "5"),
    ("\\boxed{4} and \\boxed{5", None, None),
    ("\\boxed{}", None, None),
    ("\\boxed{4} then \\boxed{ }", None, None),
    ("\\boxed{$ $}", None, None),
    ("\\boxed", None, None),
    ("\\boxed{", None, None),
    ("no marker, 18", None, None),
    ("", None, None),
    ("\\boxed{\\text{5 apples}}", "\\boxed{", "\\text{5 apples}"),
    ("\\boxed{\\frac{1}{\\sqrt{2}}} is it", "\\boxed{", "\\frac{1}{\\sqrt{2}}"),
    ("\\boxed{\\{1, 2\\}}", "\\boxed{", "\\{1, 2\\}"),
    ("\\boxed{\\left\\{1\\right.} end", "\\boxed{", "\\left\\{1\\right."),
    ("\\boxed{a\\\\} b}", "\\boxed{", "a\\\\"),
    ("\\boxed {5}", "\\boxed {", "5"),
    ("\\boxed{ 5 }", "\\boxed{ ", "5"),
    ("\\boxed{$5$}", "\\boxed{$", "5"),
    ("$\\boxed 5$ done", "\\boxed ", "5"),
    ("\\boxed 5", "\\boxed ", "5"),
    ("\\boxed5.", "\\boxed", "5"),
    ("\\boxed 3.5, so", "\\boxed ", "3.5"),
    ("\\boxed 1,000.", "\\boxed ", "1,000"),
    ("\\boxed\\frac{1}{2} ok", "\\boxed", "\\frac{1}{2}"),
    ("#### 18", "#### ", "18"),
    ("so\n#### 18\n", "#### ", "18"),
    ("####18", "####", "18"),
    ("#### $1,800.50", "#### $", "1,800.50"),
    ("#### 18.", "#### ", "18"),
    ("#### ", None, None),
    ("#### 4\nand then ####", None, None),
    ("The answer is 5.", "The answer is ", "5"),
    ("The answer is 5. Then more.", "The answer is ", "5"),
    ("The answer is 5\nMore.", "The answer is ", "5"),
    ("the answer is: 3.5", "the answer is: ", "3.5"),
    ("THE ANSWER IS -3.5.\n", "THE ANSWER IS ", "-3.5"),
    ("The answer is\n\n7\nbye", "The answer is\n\n", "7"),
    ("The answer is $\\boxed{5}$.", "The answer is $\\boxed{", "5"),
    ("The answer is: \\boxed{5}", "The answer is: \\boxed{", "5"),
    ("The answer is clear. \\boxed{5}", "\\boxed{", "5"),
    ("#### \\boxed{5}", "#### \\boxed{", "5"),
    ("答えは \\boxed{日本😀} です", "\\boxed{", "日本😀"),
    ("Ⅷ\u2028ß The answer is ½.", "The answer is ", "½"),
    ("\\boxed{5}. I hope the answer is correct.", "\\boxed{", "5"),
    ("\\boxed{5}\nThe answer is verified.", "\\boxed{", "5"),
    ("\\boxed{5}. So the answer is 5 as expected.", "\\boxed{", "5"),
    ("\\boxed{5}\n\n#### Check\nok", "\\boxed{", "5"),
    ("\\boxed{5}\na: this is", "\\boxed{", "5"),
    ("Express the answer is in simplest form. \\boxed{\\frac{9}{35}}", "\\boxed{", "\\frac{9}{35}"),
    ("##### 5 of them", None, None),
    ("The answer is\n\\[\n5\n\\]\nDone.", "The answer is\n\\[\n", "5"),
    ("The answer is:\n$$\nx=5\n$$", "The answer is:\n$$\n", "x=5"),
    ("So\n**Answer:** 5", "Answer:** ", "5"),
    ("**Final Answer**: $5$", "Answer**: $", "5"),
    ("Final Answer: 5.", "Answer: ", "5"),
    ("The final answer is 5.", "The final answer is ", "5"),
    ("Q: 3+4?\nA: 7", "A: ", "7"),
    ("Vitamin A: 7 mg", None, None),
    ("The answer is $5$ or $6$.", "The answer is $", "5$ or $6"),
    ("The answer is $1$, $2$, and $3$.", "The answer is $", "1$, $2$, and $3"),
    ("The answer is $5$ and not $6$.", "The answer is $", "5"),
    ("The answer is $x$ = $5$.", "The answer is $", "x$ = $5"),
    ("The answer is $x$ = 5.", "The answer is $", "x$ = 5"),
    ("The answer is $5$ million.", "The answer is $", "5$ million"),
    ("The answer is $5$ dollars, for $x = 5$.", "The answer is $", "5"),
    ("#### 18\nThe answer is correct.", "#### ", "18"),
    ("The answer is 5.\nThe answer is quite reasonable.", "The answer is ", "5"),
    ("The answer is 5.\nThe answer is no.", "The answer is ", "no"),
    ("The answer is 5. No, the answer is B.", "the answer is ", "B"),
    ("The answer is even.", "The answer is ", "even"),
    ("The answer is 5, but they ask which.\n#### odd", "#### ", "odd"),
    ("The answer is 5, but they ask who.\n#### Tom", "#### ", "Tom"),
    ("The answer is 12.\n\n#### Verification\nWe add.", "The answer is ", "12"),
    ("#### 12\n#### Final Check\nFine.", "#### ", "12"),
    ("\\boxed{12}\n\n#### Step 2\nWe add.", "\\boxed{", "12"),
    ("\\boxed{12}\n\n#### 2 apples", "#### ", "2 apples"),
    ("The answer is:\n- 12", "The answer is:\n- ", "12"),
    ("The answer is:\n-12", "The answer is:\n", "-12"),
    ("The answer is: - 12", "The answer is: ", "- 12"),
    ("The answer is\n\n1. 5", "The answer is\n\n1. ", "5"),
    ("The answer is **12**!", "The answer is **", "12"),
    ("The answer is **5!**", "The answer is **", "5!"),
    ("The answer is 5!", "The answer is ", "5!"),
    ("The answer is:\n\n5. So James has 5 apples.", "The answer is:\n\n", "5"),
    ("The final answer is:\n12. I hope it is correct.", "The final answer is:\n", "12"),
    ("The answer is **\\[5\\]**", "The answer is **\\[", "5"),
    ("The answer is **\\(x = 5\\)**.", "The answer is **\\(", "x = 5"),
    ("The answer is **$\\frac{3}{4}$ cup**.", "The answer is **$", "\\frac{3}{4}"),
    ("The answer is **5. This is since 2+3 = 5.**", "The answer is **", "5"),
    ("The answer is Monday.\n#### Tuesday\n\nQuestion: how", "#### ", "Tuesday"),
    ("A: 5\n#### Yes\nmore text", "#### ", "Yes"),
]


@pytest.mark.parametrize(("text", "conclusion", "answer"), CASES)
def test_cases(text: str, conclusion: str | None, answer: str | None) -> None:
    assert found(text) == (None if conclusion is None else (conclusion, answer))


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("#### 1", None),
        ("The answer is 1", None),
        ("The answer is 3.", None),  # 3.5?
        ("\\boxed 1", None),
        ("\\boxed{1", None),
        ("#### 18\n", "18"),
        ("The answer is 5. An", "5"),
        ("\\boxed{18}", "18"),
        ("$\\boxed 5$", "5"),
    ],
)
def test_a_truncated_answer_counts_only_where_it_is_finished(text: str, answer: str | None) -> None:
    result = found(text, complete=False)
    assert (result and result[1]) == answer


def test_formats() -> None:
    text = "\\boxed{4} 答案是 5\n"
    assert found(text, AnswerFormat(phrases=())) == ("\\boxed{", "4")
    assert found(text, AnswerFormat(boxed=False, phrases=("答案是",))) == ("答案是 ", "5")
    assert found(text, AnswerFormat(boxed=False)) is None
    assert found("a.b 1\naxb 2", AnswerFormat(phrases=("a.b",))) == ("a.b ", "1")  # a phrase is no pattern


@pytest.mark.parametrize(
    ("arguments", "key"),
    [
        ({"boxed": False, "phrases": ()}, "answer.boxed"),
        ({"phrases": ("ok", " ")}, "answer.phrases"),
        ({"no_span": "none"}, "answer.no_span"),
    ],
)
def test_bad_formats_name_their_key(arguments: dict[str, object], key: str) -> None:
    with pytest.raises(ValueError, match=key.replace(".", r"\.")):
        AnswerFormat(**arguments)


def test_gold_answer() -> None:
    assert gold_answer("She has 9 * 2 = <<9*2=18>>18.\n#### 1,800") == "1,800"
    assert gold_answer("She has 18.") is None


@pytest.mark.parametrize(
    "piece", ["\\boxed{", "\\boxed", "#### ", "the answer is ", "{", "\\boxed{}", "the answer is: :", " ", "\\", "$", "."]
)
def test_linear_time(piece: str) -> None:
    """A million characters of any of these in well under a second; twice as many in about twice the time."""

    def seconds(text: str) -> float:
        start = time.process_time()
        find_answer(text)
        find_answer(text, complete=False)
        return time.process_time() - start

    count = 1_000_000 // len(piece)
    for before in ("\\boxed{", "#### 18"):
        half, full = seconds(before + piece * (count // 2)), seconds(before + piece * count)
        assert full < 2.0
        assert full < 5 * half + 0.1


def test_regions_are_the_digits_that_pages_of_credit_read() -> None:
    """One character a token: inspection/heatmap.js has classes r0 to r3 and knows answers by a 2."""
    assert "".join(str(int(region)) for region in Region) == "0123"
    assert [region.name for region in Region] == ["REASONING", "CONCLUSION", "ANSWER", "TAIL"]


def regions_of(pieces: list[str], answer: AnswerSpan | None) -> str:
    """The regions of consecutive tokens as a string of first letters."""
    ends = list(itertools.accumulate(map(len, pieces)))
    spans = [(end - len(piece), end) for piece, end in zip(pieces, ends, strict=True)]
    return "".join(region.name[0] for region in token_regions(spans, answer))


@pytest.mark.parametrize(
    ("pieces", "expected"),
    [
        (["So", " 5", ".\n", "####", " ", "18", ""], "RRRCCAT"),
        (["So", " 5", ".\n####", " 18", ""], "RRCAT"),  # merged with the conclusion, and with the answer
        (["So", " 5", ".\n#### 18", "\n", "bye", ""], "RRATTT"),
        (["\\boxed{", "5", "}."], "CAT"),
        (["\\boxed{5}", "."], "AT"),
        (["x", "\\", "box", "ed{", "1", "2", "}.", " so", ""], "RCCCAATTT"),
        (["x \\boxed{1", "2}.", ""], "AAT"),
        (["", "#### 5", ""], "CAT"),
        (["no", " marker", ""], "RRR"),
    ],
)
def test_regions(pieces: list[str], expected: str) -> None:
    assert regions_of(pieces, find_answer("".join(pieces))) == expected


def byte_spans(text: str, cuts: Sequence[int]) -> list[tuple[int, int]]:
    """Character ranges of the tokens that cutting the text's bytes at `cuts` makes; equal cuts make empty tokens."""
    owner = [i for i, character in enumerate(text) for _ in character.encode()] + [len(text)]
    bounds = [0, *sorted(cuts), len(owner) - 1]
    return [(owner[a], owner[b - 1] + 1 if b > a else owner[a]) for a, b in itertools.pairwise(bounds)]


MARKS = ["\\boxed{", "}", "{", "#### ", "the answer is", "答え", " ", "5", "é", "😀", ".", "\n", "$", "x", "\\"]


@settings(max_examples=400, deadline=None)
@given(st.data())
def test_regions_partition_in_order_and_cover_the_answer(data: st.DataObject) -> None:
    text = "".join(data.draw(st.lists(st.sampled_from(MARKS), max_size=14)))
    cuts = data.draw(st.lists(st.integers(0, len(text.encode())), max_size=12))
    spans = byte_spans(text, cuts)
    answer = find_answer(text, AnswerFormat(phrases=("#### ", "the answer is", "答え")))
    check_regions(spans, answer)


@settings(max_examples=200, deadline=None)
@given(st.lists(st.integers(0, len("x #### 😀5.\n".encode())), max_size=12))
@example([9, 9, 9])
def test_regions_where_the_answer_starts_amid_tokens(cuts: list[int]) -> None:
    """Special tokens between the bytes of the answer's first character."""
    text = "x #### 😀5.\n"
    answer = find_answer(text)
    assert answer is not None
    assert text[answer.start : answer.end] == "😀5"
    check_regions(byte_spans(text, cuts), answer)


def check_regions(spans: list[tuple[int, int]], answer: AnswerSpan | None) -> None:
    regions = token_regions(spans, answer)
    assert len(regions) == len(spans)
    assert regions == sorted(regions)
    if answer is None:
        assert set(regions) <= {Region.REASONING}
        return
    assert answer.conclusion <= answer.start < answer.end
    for (begin, end), region in zip(spans, regions, strict=True):
        held = set(range(begin, end))
        if held & set(range(answer.start, answer.end)):
            assert region is Region.ANSWER
        elif held & set(range(answer.conclusion, answer.start)):
            assert region is Region.CONCLUSION
        elif held:
            assert region is (Region.REASONING if end <= answer.conclusion else Region.TAIL)
    covered = {i for span, region in zip(spans, regions, strict=True) if region is Region.ANSWER for i in range(*span)}
    assert covered >= set(range(answer.start, answer.end))
