"""One spelling for final answers, whatever their TeX, markup or punctuation."""

from __future__ import annotations

import re
import unicodedata

from oar_lightning.answers.numbers import without_mixed

_SPACE = re.compile(r"(?<!\\)\\[,;: ]|\\q?quad(?![A-Za-z])|~|\s")
_DROPPED = re.compile(r"[£€]|\\!|\\(?:left|right|[bB]igg?[lrm]?|displaystyle)(?![A-Za-z])|\\?\$|\\?%|\^\{?\\circ\}?|°|\\degree")
_RELATIONS = {
    "<=": r"\\leqslant|\\leq|\\le|≤",
    ">=": r"\\geqslant|\\geq|\\ge|≥",
    "<": r"\\lt",
    ">": r"\\gt",
    "!=": r"\\neq|\\ne|≠|\\not\s*=",
}
_REPLACED = [(re.compile(rf"(?:{names})(?![A-Za-z])"), sign) for sign, names in _RELATIONS.items()] + [
    (re.compile(r"\\[dtc]frac(?![A-Za-z])"), r"\\frac"),
    (re.compile(r"[−–]"), "-"),
    (  # degrees mean something in an angle's function alone
        re.compile(
            r"\\(sin|cos|tan|cot|sec|csc)((?:\^\{?\d\}?)?)\s*(?:\\left\s*)?[({]*\s*(\d+(?:\.\d+)?)\s*\}?"
            r"(?:\^\{?\\circ\}?|°|\\degree|\\?\s*\\text\s*\{\s*degrees?\s*\})(?:\s*\\right)?[)}]*"
        ),
        r"\\\1\2(\\frac{\3\\pi}{180})",
    ),
    (re.compile(r"(?<![\\A-Za-z])(pi|sqrt|infinity)(?![A-Za-z])"), r"\\\1"),
    (re.compile(r"\\infinity|∞"), r"\\infty"),
    (re.compile(r"π"), r"\\pi"),
    (re.compile(r"≈"), r"\\approx "),
    (re.compile(r"(?<![\\A-Za-z])ln(?![A-Za-z])"), r"\\ln"),
    (re.compile(r"√(\d+)"), r"\\sqrt{\1}"),
    (re.compile(r"√\(([^()]*)\)"), r"\\sqrt{\1}"),
    (  # the odd root of a negative number is real in school, where algebra has a complex one
        re.compile(r"\\sqrt\s*\[\s*(\d*[13579])\s*\]\s*\{\s*-\s*((?:[^{}+\-]|\{[^{}]*\})+)\}"),
        r"(-\\sqrt[\1]{\2})",
    ),
    (re.compile(r"\\varnothing|∅"), r"\\emptyset"),
    (re.compile(r"\\math(?:rm|it)\{([ie])\}"), r"\1"),
    (re.compile(r"\\(?:boldsymbol|underline|mathbf)\{([^{}]*)\}"), r"\1"),
    (re.compile(r"\\text(?:normal|sf|tt|sc)\{"), r"\\text{"),
    (re.compile(r"(?<=\d)(?:\{,\}|,\s*\\!)\s*(?=\d{3})"), ""),
    (re.compile(r"\\textcolor\s*\{[^{}]*\}|\\color\s*\{[^{}]*\}|\\color\s+[A-Za-z]+"), ""),
]
_ARGUMENT = (
    r"(\{(?:[^{}]|\{[^{}]*\})*\}|\d(?!\d)|[A-Za-z](?![A-Za-z])|\\(?:pi|alpha|beta|gamma|theta|phi|mu|sigma)(?![A-Za-z]))"
)
_FRAC = re.compile(rf"\\frac\s*(?:{_ARGUMENT}|(\d))\s*{_ARGUMENT}")
_THOUSANDS = re.compile(r"(?<![\d,.])\d{1,3}(?:,\d{3})+(?![\d,])")
_SPACED_THOUSANDS = re.compile(r"[+-]?\d{1,3}(?: \d{3})+(?:\.\d+)?")
_WRAPPER = re.compile(r"\\(?:text|textbf|textit|textrm|mathrm|mathbf|mbox|boxed)\s*\{([^{}]*)\}")
_NEEDLESS_SPACE = re.compile(r"(?<!\w) | (?!\w)")
_REPEATING = re.compile(r"(?<![\d.])(\d{0,9})\.(\d{0,9})\\(?:overline|bar)\s*\{?(\d{1,9})\}?")


def _repeating_decimal(match: re.Match[str]) -> str:
    """`0.1\\overline{6}` as a fraction."""
    whole, start, period = match[1] or "0", match[2], match[3]
    nines = (10 ** len(period) - 1) * 10 ** len(start)
    return f"\\frac{{{int(whole + start + period) - int(whole + start)}}}{{{nines}}}"


def _braced(match: re.Match[str]) -> str:
    """A fraction whose arguments both have braces."""
    return "\\frac" + "".join(a if a[0] == "{" else f"{{{a}}}" for a in (match[1] or match[2], match[3]))


_LEAD = re.compile(
    r"^\s*(?:\\(?:text|textbf|mathrm)\s*\{\s*)?(?:the )?(?:final |correct )?answer(?:\s+is\b|\s*:)\s*:?\s*\}?\s*(?=\S)",
    re.IGNORECASE,
)
"""`Answer:` and the like at the beginning of a box."""
_OPTION = re.compile(r"^\s*(\\text\w*\s*\{\s*)?(?:option|choice)\s+(?=\(?[A-J]\)?(?![\w']))", re.IGNORECASE)
_FACTORIAL = re.compile(r"(\w+|\([^()]*\))!\s+(?==)")
"""Before the sign of equality of `5! = 120`; `5 != 120` denies it."""
_RAISED = re.compile("[⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻ⁿ]+")


def _visible(text: str) -> str:
    """The text without byte order and direction marks, with fractions such as ½ and powers such as ² in TeX."""
    if text.isascii():
        return text
    text = _RAISED.sub(lambda match: f"^{{{unicodedata.normalize('NFKC', match[0])}}}", text)
    out = []
    for character in text:
        above, slash, below = unicodedata.normalize("NFKC", character).partition("\u2044")
        if slash:
            out.append(f"\\frac{{{above}}}{{{below}}}")
        elif unicodedata.category(character) != "Cf":
            out.append(character)
    return "".join(out)


def _stated(text: str) -> str:
    """The exact side of `2/3 \\approx 0.67`; of `\\approx 18` and `x \\approx 18` the only number."""
    exact, approximately, rounded = text.partition("\\approx")
    if not approximately:
        return text
    return rounded if re.fullmatch(r"\s*[A-Za-z]?\s*", exact) else exact


def rounded(text: str) -> str | None:
    """The number after the sign in `2/3 \\approx 0.67`; None without one."""
    match = re.search(r"\\approx\s*(-?\d*\.\d+)\s*[.$]*$", text.replace("≈", "\\approx"))
    return match and match[1]


def _with_joined_thousands(text: str) -> str:
    """Without the commas of numbers outside of brackets, where a comma separates, and of `(1,000)`: no number is `000`."""

    def joined(number: re.Match[str]) -> str:
        before, after = text[: number.start()], text[number.end() :]
        inside = sum(map(before.count, ("(", "[", "\\{"))) > sum(map(before.count, (")", "]", "\\}")))
        alone = before.endswith("(") and after.startswith(")") and ",0" in number[0]
        return number[0] if inside and not alone else number[0].replace(",", "")

    return _THOUSANDS.sub(joined, text)


_BOLD_END = re.compile(r"(?<=[^\s*])\*\*(?=\s|$)")
"""The end of what was in bold, as in `42** dollars`; a power has something behind it."""
_POWER = re.compile(r"(?<=[\w)}\]])( ?)\*\*\1(?:\(([^()]*)\)|(-?\d+(?:\.\d+)?|-?[A-Za-z]))(?![\w*]|\.\d)")
"""`x**2` and `x ** 2`, as programs write powers; `is **42**` is in bold."""


_DEGREES = re.compile(r"\\circ(?![A-Za-z])|°|\\degree|\bdeg(?:ree)?s?\b", re.IGNORECASE)
_RADIANS = re.compile(r"\brad(?:ian)?s?\b", re.IGNORECASE)


def in_other_angles(first: str, second: str) -> bool:
    """Whether one text says degrees and the other radians, of which the canonical spelling drops the sign of degrees."""
    said = [(bool(_DEGREES.search(text)), bool(_RADIANS.search(text))) for text in (first, second)]
    return set(said) == {(True, False), (False, True)} and bool(re.search(r"[1-9]", first + second))


def canonical(text: str, join_thousands: bool = True) -> str:
    """The answer in one spelling of spaces, relations and TeX commands, without end punctuation, TeX sizes and colours, and
    percent, currency and degree signs.

    `join_thousands` reads `70,110` as a number; otherwise it is a list.
    """
    text = _POWER.sub(lambda match: f"^{{{match[2] or match[3]}}}", _LEAD.sub("", _visible(text)))
    text = _FACTORIAL.sub(r"(\1!)", _OPTION.sub(r"\1", _BOLD_END.sub("", text)))
    for pattern, spelling in _REPLACED:
        text = pattern.sub(spelling, text)
    if join_thousands:
        text = _with_joined_thousands(text)  # before signs are dropped that end a number
    text = _DROPPED.sub("", text)
    text = _FRAC.sub(_braced, _stated(text))
    text = " ".join(_SPACE.sub(" ", text).split())
    while (whole := re.fullmatch(r"\{([^{}]*(?:\{[^{}]*\}[^{}]*)*)\}", text)) is not None:
        text = whole[1].strip()
    text = text.strip("*_` ").rstrip(".,;:? ").lstrip(":, ")
    text = re.sub(r"^=(?![=>]|$)\s*", "", text)  # `= 25`
    text = re.sub(r"^\+\s*", "", re.sub(r"^-\s+", "-", text))
    text = _REPEATING.sub(_repeating_decimal, text)
    if (inner := re.fullmatch(r"\\text\s*\{([^{}]*\d[^{}]*)\}", text)) is not None:
        text = inner[1].strip()
    if whole := re.fullmatch(r"\\(?:textbf|mathrm|boxed)\s*\{([^{}]*)\}", text):
        text = whole[1].strip()
    if enclosed := re.fullmatch(r"\(([^(),]*)\)", text):  # (073), (B); a pair or an interval has a comma
        text = enclosed[1].strip()
    if _SPACED_THOUSANDS.fullmatch(text):
        text = text.replace(" ", "")
    return without_mixed(_NEEDLESS_SPACE.sub("", text))


def unwrapped(text: str) -> str:
    r"""The text with `\text{...}`, `\mathrm{...}` and the like replaced by their contents."""
    return _WRAPPER.sub(r"\1", text)
