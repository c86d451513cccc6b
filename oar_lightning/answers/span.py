"""Finds the span of a text's final answer, and from it the regions of the tokens (OAR, arXiv 2601.07408).

The last answer marker wins.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Literal, NamedTuple

from oar_lightning.answers.numbers import SIZES
from oar_lightning.common.ranges import Rule, checked


class Region(IntEnum):
    """The part of a completion that a token belongs to, in the order in which the parts follow each other."""

    REASONING = 0
    CONCLUSION = 1
    ANSWER = 2
    TAIL = 3


class AnswerSpan(NamedTuple):
    """Character positions: the conclusion is ``[conclusion, start)``, the answer's content ``[start, end)``."""

    conclusion: int
    start: int
    end: int


@checked(
    "answer",
    Rule(  # a text is a sequence of texts, too
        lambda phrases: not isinstance(phrases, str),
        "answer.phrases is a list, e.g. answer.phrases=[{phrases!r}], got {phrases!r}",
    ),
    Rule(
        lambda boxed, phrases: boxed or phrases,
        "answer.boxed=false and answer.phrases=[] leave no marker to find an answer by; set one",
    ),
    Rule(
        lambda phrases: all(phrase.removeprefix("^").strip() for phrase in phrases),
        "answer.phrases must not hold an empty phrase, got {phrases}",
    ),
)
@dataclass(frozen=True)
class AnswerFormat:
    r"""Where a completion states its final answer.

    Args:
        boxed: whether ``\boxed{...}`` (balanced braces, or one brace-less token) marks an answer.
        phrases: texts after which the rest of the line is the answer, compared without regard to case. A phrase that begins
            with ``^`` counts only at the beginning of a line. The text after a phrase of words must look like an answer (see
            `_is_answer`): "the answer is in simplest form" states none. "The answer is correct", after another
            answer, is a remark.
        no_span: the credit of a completion without an answer. `uniform` keeps weight 1 on all its tokens; `last_token`
            scores its tokens by their influence on the last one.
    """

    boxed: bool = True
    phrases: Sequence[str] = ("#### ", "the answer is", "the final answer is", "answer:", "answer**:", "^A:")
    no_span: Literal["uniform", "last_token"] = "uniform"


_BOX = "\\boxed"
_TRIM = " \t\r\n$*"
_TRIM_END = _TRIM + "?"


def find_answer(text: str, answer_format: AnswerFormat = AnswerFormat(), complete: bool = True) -> AnswerSpan | None:
    """The span of the last marked answer; None where there is no marker or the last marked answer is empty or unclosed.

    `complete`: the text ended by itself. An answer that only the end of its line would close is unfinished in a truncated
    text, and does not count. The time is linear in the text's length.
    """
    box = text.rfind(_BOX) if answer_format.boxed else -1
    content = _boxed_content(text, box, complete) if box >= 0 else None
    found = [place for phrase in answer_format.phrases for place in _stated_after(text, phrase, complete, box, content)]
    phrase_start, phrase_end = max(found, default=(-1, -1))
    if found and _is_remark(text, phrase_start, phrase_end, complete):
        phrase_start, phrase_end = max((p for p in found if not _is_remark(text, *p, complete)), default=max(found))
    if box < 0 and phrase_start < 0:
        return None
    if box > phrase_start:
        # "The answer is $\boxed{4}$": the phrase that leads up to the box belongs to the conclusion
        leads = phrase_start >= 0 and not text[phrase_end:box].strip(_TRIM + ":")
        conclusion = phrase_start if leads else box
    else:
        content = _line_content(text, phrase_end, complete)
        conclusion = phrase_start
    if content is None:
        return None
    start, end = _trim(text, *content)
    return AnswerSpan(conclusion, start, end) if start < end else None


def token_regions(spans: Sequence[tuple[int, int]], answer: AnswerSpan | None) -> list[Region]:
    """Region of each token from its character range; the four regions partition the tokens in order.

    A token that overlaps any character of the answer is part of the answer; one that overlaps the conclusion is part of
    the conclusion. Without an answer every token is reasoning.
    """
    if answer is None:
        return [Region.REASONING] * len(spans)
    # max: a special token between the bytes of the answer's first character has an empty range before that character
    return list(itertools.accumulate((_region(begin, end, answer) for begin, end in spans), max))


def _region(begin: int, end: int, answer: AnswerSpan) -> Region:
    if end <= answer.start:
        return Region.REASONING if end <= answer.conclusion and begin < answer.conclusion else Region.CONCLUSION
    return Region.ANSWER if begin < answer.end else Region.TAIL


def gold_answer(solution: str, answer_format: AnswerFormat = AnswerFormat()) -> str | None:
    """The final answer that a worked solution states, or None."""
    span = find_answer(solution, answer_format)
    return None if span is None else solution[span.start : span.end]


def refuse_solution(stated: str, where: str, remedy: str) -> None:
    """Raises: ValueError: for a worked solution in the place of a gold answer, with what to do."""
    several = "\n" in stated or "####" in stated
    if not (several or _PROSE.search(stated)):  # of nearly all rows of a data set: a search for answers takes ten times as long
        return
    span = find_answer(stated)
    if span and (several or _PROSE.search(stated[: span.conclusion])):
        final = stated[span.start : span.end]
        raise ValueError(f"{where} holds a worked solution, which ends with {final!r}, and no answer alone; {remedy}")


_PROSE = re.compile(r"(?<!\\)\b[A-Za-z]{2,}\b[^A-Za-z].*?(?<!\\)\b[A-Za-z]{2,}\b", re.DOTALL)
"""Two words, which are no commands of TeX: what stands before the answer that a solution comes to."""


def _stated_after(
    text: str, phrase: str, complete: bool, box: int, content: tuple[int, int] | None
) -> Iterator[tuple[int, int]]:
    """Start and end of each occurrence of `phrase` that states an answer.

    `box`: where the last box begins, -1 without one. `content`: that of a closed box, inside of which a phrase states none.
    """
    anchor, phrase = ("(?m:^)", phrase[1:]) if phrase.startswith("^") else ("", phrase)
    stem = phrase.strip()
    if text.isascii() and stem.lower() not in text.lower():  # most phrases in most texts: a search takes ten times as long
        return
    pattern = anchor + re.escape(stem)
    if stem.startswith("#"):  # a longer row of # is a heading
        pattern = f"(?<!#){pattern}(?!#)"
    for match in re.finditer(pattern, text, re.IGNORECASE):
        if content is not None and box <= match.start() < content[1]:
            continue
        strict = content is not None and box < match.start()
        if _is_answer(text, match.end(), complete, strict, words=stem[0].isalpha()):
            yield match.span()


_LONGEST_PROSE = 150
"""Characters after a phrase of words within which the answer must end."""


def _is_answer(text: str, start: int, complete: bool, strict: bool, words: bool) -> bool:
    """Whether the text after a phrase can be an answer.

    After a phrase of `words` it must be short, and hold a digit or TeX or be at most two words long. After a closed box
    (`strict`) it must hold a digit or TeX and be at most two words long: else it is a remark on the box ("the answer is
    correct"). An unfinished text counts as an answer, for it might become one.
    """
    if not (words or strict):
        return True
    whole = start + _LONGEST_PROSE >= len(text)
    content = _line_content(text[start : start + _LONGEST_PROSE], 0, complete and whole)
    if content is None:
        return whole and not strict
    stated = text[start + content[0] : start + content[1]]
    formal, short = bool(re.search(r"[\d\\$]", stated)), len(stated.split()) <= 2
    if strict and not words and stated[:1].isalpha() and " " in stated.strip():
        return False  # a heading: #### Step 2
    if strict and not words and _NUMBERED.match(text, start + content[1]):
        return False  # a numbered heading: #### 2. Verification
    if strict and re.match(r"[a-z]{2,}\s", stated):
        return False  # "the answer is not 6", "over 9"
    return formal and short if strict else formal or short


def _is_remark(text: str, start: int, end: int, complete: bool) -> bool:
    """Whether the text after a phrase, which begins at `start`, is words in lower case, as in "the answer is correct", but for
    those that may answer; or after `####` the words of a heading, which more text follows."""
    content = _line_content(text[end : end + _LONGEST_PROSE], 0, complete)
    if content is None:
        return False
    stated = text[end + content[0] : end + content[1]].strip(_TRIM_END)
    if text[start] == "#":
        return bool(_HEADING.fullmatch(stated) and text[end + content[1] :].strip(_TRIM_END + "."))
    return text[start].isalpha() and bool(_WORDS.fullmatch(stated))


_WORDS = re.compile(r"(?!(?:yes|no|none|true|false)$)[a-z]{2,}(?: [a-z]{2,})*")
_TITLE = r"\b(?:Check|Checking|Conclusion|Explanation|Notes?|Reasoning|Remarks?|Solution|Step|Summary|Verification)\b"
_HEADING = re.compile(rf"(?=.*{_TITLE})[A-Z][a-z]+(?: \w+)*(?::.*)?")
_NUMBERED = re.compile(rf"\.[ \t]{{1,9}}{_TITLE}")


def _boxed_content(text: str, box: int, complete: bool) -> tuple[int, int] | None:
    start = box + len(_BOX)
    while start < len(text) and text[start] in " \t":
        start += 1
    if start == len(text):
        return None
    if text[start] != "{":
        token = re.compile(r"(?:[^\s$.,;]|[.,](?=\d))+").match(text, start)
        return token.span() if token and (complete or token.end() < len(text)) else None
    depth = 0
    escaped = False
    for index in range(start, len(text)):
        character = text[index]
        if escaped:
            escaped = False
        elif character == "\\":
            escaped = True
        elif character == "{":
            depth += 1
        elif character == "}":
            depth -= 1
            if depth == 0:
                return start + 1, index
    return None


_FORMULA = r"\$[^$\n]+\$(?!\d)"
_INLINE = re.compile(
    rf"(?>{_FORMULA}(?:\s*(?:,(?:\s*(?:and|or)\b)?|and\b|or\b|=)\s*{_FORMULA})*(?: (?:{'|'.join(SIZES)})s?\b)?)(?!\s*=)"
)
"""`$5$`, or all of `$5$ or $6$`, `$x$ = $5$` and `$5$ million`: a part of these would be another answer."""


_ADVERBS = "therefore|thus|hence|indeed|clearly|simply|just|exactly|precisely|approximately|roughly|about"
_LEAD_IN = re.compile(rf"[:\s*]*(?:(?:{_ADVERBS}),? +(?=[-+\d$\\*])[:\s*]*)?")
"""What stands before an answer: "therefore 18" is 18."""

_LIST_MARK = re.compile(r"[-\u2022] +(?=\S)|1[.)] +(?=[-+]?[\d$\\]\S*\s*(?:\n|\Z))")
"""Of an answer below its phrase: `- 12` and `1. 12` are 12. (`12. That is ...` is 12, too.)"""

_BOLD, _CLOSED_BOLD = (re.compile(rf"((?:(?!\.\s)[^\n*])+)\*\*[.!?]*(?=\s*{end})") for end in (r"(?:\n|\Z)", r"\n"))
"""What ends a line in bold, behind which a mark is no factorial; and where the text's end may not be the line's."""


_STOP, _CLOSED_STOP = (
    re.compile(rf"\n|{end}|(?<=[\dA-Z)}}\]$%]),?\s++(?:because|since)\b") for end in (r"\.(?=\s|\Z)", r"\.(?=\s)")
)
"""What ends the line of an answer, or begins its reason: that of words ("correct because ...") is a remark's."""


def _line_content(text: str, start: int, complete: bool) -> tuple[int, int] | None:
    """From `start`, and an adverb there, to the end of the sentence or line, or of the display that follows."""
    begin = start
    match = _LEAD_IN.match(text, start)
    start = match.end() if match else start
    if "\n" in text[begin:start] and (mark := _LIST_MARK.match(text, start)):
        start = mark.end()
    for opening, closing in (("\\[", "\\]"), ("$$", "$$"), ("\\(", "\\)")):
        if text.startswith(opening, start):
            end = text.find(closing, start + 2)
            return (start + 2, end) if end >= 0 else None
    if inline := _INLINE.match(text, start):
        return inline.span()
    if text.endswith("**", begin, start) and (bold := (_BOLD if complete else _CLOSED_BOLD).match(text, start)):
        return bold.span(1)
    # the last full stop of a truncated text may be a decimal point
    stop = (_STOP if complete else _CLOSED_STOP).search(text, start)
    if stop is None:
        return (start, len(text)) if complete else None
    return start, stop.start()


def _trim(text: str, start: int, end: int) -> tuple[int, int]:
    while start < end and text[start] in _TRIM:
        start += 1
    while end > start and text[end - 1] in _TRIM_END and text[end - 2 : end] != "\\$":
        end -= 1
    return start, end
