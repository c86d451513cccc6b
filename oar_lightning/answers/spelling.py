"""One spelling for final answers, whatever their TeX, markup or punctuation."""

from __future__ import annotations

import re

_SPACE = re.compile(r"(?<!\\)\\[,;: ]|\\q?quad(?![A-Za-z])|~|\s")
_DROPPED = re.compile(r"[£€]|\\!|\\(?:left|right|[bB]igg?[lrm]?|displaystyle)(?![A-Za-z])|\\?\$|\\?%|\^\{?\\circ\}?|°|\\degree")
_RELATIONS = {
    "<=": r"\\leqslant|\\leq|\\le|≤",
    ">=": r"\\geqslant|\\geq|\\ge|≥",
    "<": r"\\lt",
    ">": r"\\gt",
    "!=": r"\\neq|\\ne|≠",
}
_REPLACED = [(re.compile(rf"(?:{names})(?![A-Za-z])"), sign) for sign, names in _RELATIONS.items()] + [
    (re.compile(r"\\[dtc]frac(?![A-Za-z])"), r"\\frac"),
    (re.compile(r"[−–]"), "-"),
    (re.compile(r"(?<![\\A-Za-z])(pi|sqrt|infinity)(?![A-Za-z])"), r"\\\1"),
    (re.compile(r"\\infinity|∞"), r"\\infty"),
    (re.compile(r"π"), r"\\pi"),
    (re.compile(r"(?<![\\A-Za-z])ln(?![A-Za-z])"), r"\\ln"),
    (re.compile(r"√(\d+)"), r"\\sqrt{\1}"),
    (re.compile(r"\\varnothing|∅"), r"\\emptyset"),
    (re.compile(r"\\math(?:rm|it)\{([ie])\}"), r"\1"),
    (re.compile(r"\\(?:boldsymbol|underline|mathbf)\{([^{}]*)\}"), r"\1"),
    (re.compile(r"\\text(?:normal|sf|tt|sc)\{"), r"\\text{"),
    (re.compile(r"(?<=\d)(?:\{,\}|,\\!)\s*(?=\d{3})"), ""),
]
_FRAC_DIGITS = re.compile(r"\\frac\s*(\d)\s*(\d)(?!\d)")
_THOUSANDS = re.compile(r"(?<![\d,.])\d{1,3}(?:,\d{3})+(?![\d,])")
_SPACED_THOUSANDS = re.compile(r"[+-]?\d{1,3}(?: \d{3})+(?:\.\d+)?")
_WRAPPER = re.compile(r"\\(?:text|textbf|textit|textrm|mathrm|mathbf|mbox|boxed)\s*\{([^{}]*)\}")
_REPEATING = re.compile(r"(?<![\d.])(\d{0,9})\.(\d{0,9})\\(?:overline|bar)\s*\{?(\d{1,9})\}?")


def _repeating_decimal(match: re.Match[str]) -> str:
    """`0.1\\overline{6}` as a fraction."""
    whole, start, period = match[1] or "0", match[2], match[3]
    nines = (10 ** len(period) - 1) * 10 ** len(start)
    return f"\\frac{{{int(whole + start + period) - int(whole + start)}}}{{{nines}}}"


def canonical(text: str) -> str:
    """The answer in one spelling of spaces, relations and TeX commands, without thousands separators, end punctuation, TeX
    sizes, and percent, currency and degree signs."""
    for pattern, spelling in _REPLACED:
        text = pattern.sub(spelling, text)
    text = _DROPPED.sub("", text)
    exact, approximately, _ = text.partition("\\approx")
    text = exact if approximately and exact.strip() else text
    text = _FRAC_DIGITS.sub(r"\\frac{\1}{\2}", text)
    text = " ".join(_SPACE.sub(" ", text).split())
    text = text.strip("*_` ").rstrip(".,;:? ").lstrip(":, ")
    text = re.sub(r"^\+\s*", "", re.sub(r"^-\s+", "-", text))
    text = _REPEATING.sub(_repeating_decimal, text)
    if (inner := re.fullmatch(r"\\text\s*\{([^{}]*\d[^{}]*)\}", text)) is not None:
        text = inner[1].strip()
    if whole := re.fullmatch(r"\\(?:textbf|mathrm|boxed)\s*\{([^{}]*)\}", text):
        text = whole[1].strip()
    if enclosed := re.fullmatch(r"\(([^(),]*)\)", text):  # (073), (B); a pair or an interval has a comma
        text = enclosed[1].strip()
    if not any(mark in text for mark in "([") and "\\{" not in text:  # in these a comma separates
        text = _THOUSANDS.sub(lambda m: m[0].replace(",", ""), text)
    if _SPACED_THOUSANDS.fullmatch(text):
        text = text.replace(" ", "")
    return text


def unwrapped(text: str) -> str:
    r"""The text with `\text{...}`, `\mathrm{...}` and the like replaced by their contents."""
    return _WRAPPER.sub(r"\1", text)
