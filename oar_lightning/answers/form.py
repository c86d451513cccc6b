r"""Compares final answers by their form: spelling, names, units, times, bases, inequalities, exact numbers.

A computer algebra system reads `4 feet` as a product of symbols, `4:30` as a ratio, `43_5` as 43 and `\ge 18` as 18. The
rules here decide such pairs, and leave only algebra to it. No rule executes the text, which callers keep short.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable

from oar_lightning.answers import formula
from oar_lightning.answers.equations import ASKED, NAME, equations, named_sides
from oar_lightning.answers.intervals import INEQUALITY, MEMBER, union
from oar_lightning.answers.numbers import plain_fraction, plain_number, without_mixed, without_size
from oar_lightning.answers.spelling import unwrapped
from oar_lightning.answers.structure import Outcome, Pair, brackets, choice, inside, split_top_level
from oar_lightning.answers.units import split_unit


def compare(gold: str, answer: str) -> bool | Pair:
    """Whether two canonical answers are equal, where their form decides it; else the pair for computer algebra."""
    if gold == answer:
        return True
    for rule in RULES:
        outcome = rule(gold, answer)
        if isinstance(outcome, bool):
            return outcome
        if outcome is not None:
            gold, answer = outcome
            if gold == answer:
                return True
    return gold, answer


def near(gold: str, answer: str, tolerance: float) -> bool:
    """Whether two canonical answers state one number each, in the same unit where both have one, and these differ by at most
    `tolerance`; so must all sides of an equation."""
    (*gold_sides, expected), (*answer_sides, actual) = named_sides(gold), named_sides(answer)
    outcome = units(expected, actual)
    if outcome is False:
        return False
    if isinstance(outcome, tuple):
        expected, actual = outcome
    pairs = [(expected, actual)]
    pairs += [(split_unit(side)[0], expected) for side in gold_sides if not NAME.fullmatch(side)]
    asked = NAME if gold_sides else ASKED
    pairs += [(split_unit(side)[0], actual) for side in answer_sides if not asked.fullmatch(side)]
    return all(_differ_by(*pair) <= tolerance * (1 + 1e-9) for pair in pairs)  # 0.1 is no binary fraction


def _differ_by(a: str, b: str) -> float:
    """Infinite where one of them is no number."""
    x, y = (formula.values(text) if formula.is_constant(text) else None for text in (a, b))
    return math.inf if x is None or y is None else abs(x[0] - y[0])


# -- rules -------------------------------------------------------------------------------------------------------------


_LOOSE_SPACE = re.compile(r"(?<!\d)\s+|\s+(?!\d)")


def texts(gold: str, answer: str) -> Outcome:
    """`3 \\text{ hours and } 20 \\text{ minutes}` is `3 hours and 20 minutes`: which words are marked as text says nothing."""
    bare = [unwrapped(text) for text in (gold, answer)]
    if bare == [gold, answer]:
        return None
    plain = [_LOOSE_SPACE.sub("", text) for text in bare]
    return True if plain[0] == plain[1] and re.search(r"\d[^\W\d_]{3}", plain[0]) else None


def choices(gold: str, answer: str) -> Outcome:
    """`(B) 18` is choice B, and it is 18; another letter before the same text is another choice."""
    (letter, gold_text), (other, answer_text) = choice(gold), choice(answer)
    if letter and other:
        if letter != other:
            return False
        return (gold_text, answer_text) if gold_text and answer_text else True
    if not letter and not other:
        return None
    named, text, alone = (letter, gold_text, answer_text) if letter else (other, answer_text, gold_text)
    if re.fullmatch(r"[A-J]", unwrapped(alone)):
        return named == unwrapped(alone)
    return (gold_text, answer_text) if text else None


def inequalities(gold: str, answer: str) -> Outcome:
    r"""`2 \le x < 5` is `[2,5)`, `x < 2 or x \ge 5` a union; `x \in \{1,2\}` is the set; `\ge 18` is not 18."""
    plain = [text[match.end() :] if (match := MEMBER.match(text)) else text for text in (gold, answer)]
    related = [bool(INEQUALITY.search(text)) for text in plain]
    if not any(related):
        return None if plain == [gold, answer] else (plain[0], plain[1])
    forms = [union(text) for text in plain]
    if forms[0] is not None and forms[1] is not None:
        return forms[0], forms[1]
    return None if all(related) else False


_CLOCK = re.compile(r"(\d{1,2})(?=:|\s*[ap]\.?\s?m)(?::(\d{2}))?(?::(\d{2}))?\s*(?:([ap])\.?\s?m\.?)?", re.IGNORECASE)


def clock(gold: str, answer: str) -> Outcome:
    """Compare times of day as times, not as ratios; a missing a.m. or p.m. is no difference. A ratio equals no number."""
    times = [_CLOCK.fullmatch(unwrapped(text).strip()) for text in (gold, answer)]
    first, second = times
    if first is not None and second is not None:
        if [int(part or 0) for part in first.groups()[:3]] != [int(part or 0) for part in second.groups()[:3]]:
            return False
        halves = {(match[4] or "").lower() for match in (first, second)} - {""}
        return len(halves) < 2
    if any(match is not None and match[4] for match in times):
        return False
    ratios = [bool(re.fullmatch(r"[^:]+:[^:]+", text)) for text in (gold, answer)]
    return False if any(ratios) and any(plain_number(text) is not None for text in (gold, answer)) else None


_BASED = re.compile(
    r"\(?([+-]?[0-9A-Z][0-9A-Z ]*|[+-]?[0-9][0-9a-f ]*(?=\)?\s*_\s*\{?\s*16\b))\)?"
    r"\s*_\s*\{?\s*(?:\\text\s*\{)?\s*([A-Za-z0-9]+)\s*\}?\s*\}?"
)


def bases(gold: str, answer: str) -> Outcome:
    """Compare numbers in a base: only the same digits in the same base are equal, but for their case and zeros before them."""
    matches = [_BASED.fullmatch(text) for text in (gold, answer)]
    if not any(matches):
        subscripts = [bool(re.search(r"[\d}]\s*_\s*\{?\d+\}?$", text)) for text in (gold, answer)]
        return False if subscripts[0] != subscripts[1] else None
    ten = [re.fullmatch(r"[+-]?[\d ]+", m[1]) and m[2].lower() in ("10", "ten") for m in matches if m]
    if not all(matches) and all(ten):  # 505 in base ten is 505; T_{10} is no number
        plain = [m[1] if m else text for m, text in zip(matches, (gold, answer), strict=True)]
        return plain[0], plain[1]
    forms = [(_digits(m[1]), m[2].lower()) if m else None for m in matches]
    return forms[0] == forms[1]


def _digits(text: str) -> tuple[bool, str]:
    """Whether a number in a base is negative, and its digits."""
    return text.startswith("-"), text.lstrip("+-").replace(" ", "").upper().lstrip("0")


def units(gold: str, answer: str) -> Outcome:
    """Different units make different answers; a unit that one side leaves out makes no difference."""
    (expected, gold_unit), (actual, answer_unit) = split_unit(gold), split_unit(answer)
    if gold_unit and not answer_unit:
        actual, answer_unit = split_unit(answer, also=gold_unit)
    elif answer_unit and not gold_unit:
        expected, gold_unit = split_unit(gold, also=answer_unit)
    if gold_unit and answer_unit and gold_unit != answer_unit:
        return False
    return None if (expected, actual) == (gold, answer) else (expected, actual)


_PRIMES = re.compile(r"(?:'|’|′|″|\^\{?\\prime\}?)+(?:$|\()")


def sizes(gold: str, answer: str) -> Outcome:
    """`2.5 million` is 2500000 and `3 halves` 3/2. `18'`, in feet or minutes, is not 18, and `f'(x)` not `f(x)`."""
    if bool(_PRIMES.search(gold)) != bool(_PRIMES.search(answer)):
        return False
    numbers = without_size(without_mixed(gold)), without_size(without_mixed(answer))
    return None if numbers == (gold, answer) else numbers


_SHORT_WORDS = re.compile(r"[A-Z]|[^\W\d_]\.[^\W\d_]\.?|[Nn]o|NO")


def is_words(text: str) -> bool:
    """Whether an answer is words (a name, a weekday, a.m., a choice letter), not a formula."""
    plain = unwrapped(text)
    inner = plain.strip("() ")
    if not re.fullmatch(r"[^\W\d_](?:[^\W\d_]|[ .,'’()\-])*", inner):
        return False
    return plain != text or bool(re.search(r"[^\W\d_]{3}", inner)) or bool(_SHORT_WORDS.fullmatch(inner))


_PROSE = re.compile(
    r"(?<![\\A-Za-z])(?!(?:pi|ln|log|sin|cos|tan|exp|sqrt)(?![A-Za-z]))[A-Za-z]{2}|\\(?:text|mathrm|mbox)\b|^[A-Z]$"
)
"""A word, which is no part of a number; products of variables look alike."""


_NONE = re.compile(
    r"(?:there (?:is|are) )?no(?: real)? (?:solutions?|roots?)|none|(?:the )?empty set|\\emptyset|\\\{\\\}", re.IGNORECASE
)


def nothing(gold: str, answer: str) -> Outcome:
    """The empty set, and words that say that there is no solution."""
    return True if all(_NONE.fullmatch(" ".join(unwrapped(text).split())) for text in (gold, answer)) else None


def words(gold: str, answer: str) -> Outcome:
    """Compare words by their letters, without regard to case; a text with words equals no number."""
    textual = [is_words(text) for text in (gold, answer)]
    if not all(textual):
        exact = [plain_number(text) is not None or plain_fraction(text) is not None for text in (gold, answer)]
        return False if any(exact) and any(_PROSE.search(text) for text in (gold, answer)) else None
    letters = [re.sub(r"[\W_]+", " ", unwrapped(text)).strip().casefold() for text in (gold, answer)]
    return letters[0] == letters[1]


def numbers(gold: str, answer: str) -> Outcome:
    """Compare two decimals, or two quotients of integers, exactly; 0.333333 against 1/3 is left to algebra."""
    for read in (plain_number, plain_fraction):
        expected, actual = read(gold), read(answer)
        if expected is not None and actual is not None:
            return expected == actual
    return None


def lists(gold: str, answer: str) -> Outcome:
    """Compare pairs and intervals part by part, sets and plain lists in any order; a single number equals none of them."""
    kinds = [brackets(text) for text in (gold, answer)]
    parts = [split_top_level(inside(text) if kind else text) for text, kind in zip((gold, answer), kinds, strict=True)]
    if any(len(part) > 1 for part in parts):
        parts = [[each for member in part for each in _both_signs(member)] for part in parts]
    several = [len(part) > 1 for part in parts]
    if any(several) and any(formula.values(text) is not None for text in (gold, answer)):
        return False
    if "{" in kinds and kinds[0] != kinds[1] and all(several):
        # a set may be written without its braces; a pair is no set
        same = _same_members(*parts) if "" in kinds and len(parts[0]) == len(parts[1]) else False
        return (",".join(parts[0]), ",".join(parts[1])) if same is None else same
    if "\\pm" in gold + answer and kinds == ["", ""] and all(several):
        return ",".join(parts[0]), ",".join(parts[1])
    if any(re.search(r"\\pm|\\text|\\cup|\band\b|\bor\b", text) for text in (gold, answer)):
        return None
    if sorted(kinds) == ["", "()"] and all(several):
        return _in_order(*parts)  # a list may be an ordered pair without its brackets
    if kinds[0] != kinds[1] or not (kinds[0] or any(several)):
        return None
    if len(parts[0]) != len(parts[1]):
        return None if kinds[0] else False
    if kinds[0] in ("", "{"):
        return _same_members(parts[0], parts[1])
    return _in_order(*parts) if several[0] else None


def _both_signs(text: str) -> list[str]:
    """The two values of `1\\pm2`, else the text alone."""
    return [text.replace("\\pm", sign) for sign in "+-"] if text.count("\\pm") == 1 else [text]


def _in_order(first: list[str], second: list[str]) -> bool | None:
    """Whether two lists hold the same values in the same order; None where one cannot be read."""
    if len(first) != len(second):
        return False
    outcomes = [formula.arithmetic(*pair) for pair in zip(first, second, strict=True)]
    return False if False in outcomes else True if all(outcomes) else None


def _same_members(first: list[str], second: list[str]) -> bool | None:
    """Whether two lists hold the same values, each as often, in any order; None where a value cannot be read."""
    unmatched = [formula.readable(member) for member in second]
    for member in map(formula.readable, first):
        outcomes = [formula.same(member, other) for other in unmatched]
        if None in outcomes:
            return None
        if True not in outcomes:
            return False
        unmatched.pop(outcomes.index(True))
    return True


RULES: tuple[Callable[[str, str], Outcome], ...] = (
    texts,
    choices,
    equations,
    inequalities,
    clock,
    bases,
    units,
    sizes,
    nothing,
    words,
    numbers,
    lists,
    formula.arithmetic,
)
