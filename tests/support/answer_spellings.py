"""Random answers, right and wrong, by the kind of their spelling; the value is known before it is spelled."""

from __future__ import annotations

import random
from collections.abc import Callable
from fractions import Fraction

SMALL_WORDS = ("one", "two", "three", "four", "five", "seven", "ten")


def two_numbers(rng: random.Random) -> tuple[Fraction, Fraction]:
    """Two numbers, in half of the cases the same one; else often near each other, or of the same digits."""
    below = rng.choice((1, 1, 1, 2, 3, 4, 5, 8, 10, 100, 1000))
    value = Fraction(rng.randint(-(10 ** rng.randint(1, 6)), 10 ** rng.randint(1, 6)), below)
    other = rng.choice((value + 1, -value, value * 10, value / 10, value + Fraction(1, below), value * 1000, 1 + value / 2))
    return value, value if rng.random() < 0.5 else other


def _decimal(value: Fraction) -> str | None:
    """All digits, where they end."""
    for places in range(12):
        if (value * 10**places).denominator == 1:
            digits = f"{abs((value * 10**places).numerator):0{places + 1}d}"
            whole, part = (digits[:-places], digits[-places:]) if places else (digits, "")
            return ("-" if value < 0 else "") + whole + (f".{part}" if part else "")
    return None


def _plain(value: Fraction) -> str:
    return _decimal(value) or f"{value.numerator}/{value.denominator}"


def _thousands(value: Fraction, comma: str = ",") -> str | None:
    text = _decimal(value)
    if text is None:
        return None
    whole, dot, part = text.partition(".")
    return f"{int(whole):,}".replace(",", comma) + dot + part if abs(value) >= 1 else None


def _scientific(value: Fraction, times: str) -> str | None:
    text = _decimal(abs(value))
    if text is None or value == 0:
        return None
    power = 0
    while abs(value) >= 10:
        value, power = value / 10, power + 1
    while abs(value) < 1:
        value, power = value * 10, power - 1
    return f"{_decimal(value)}{times.format(power)}"


def _fraction(value: Fraction, form: str) -> str:
    return ("-" if value < 0 else "") + form.format(abs(value.numerator), value.denominator)


def _mixed(value: Fraction, form: str) -> str | None:
    whole, rest = divmod(abs(value), 1)
    return ("-" if value < 0 else "") + form.format(whole, rest.numerator, rest.denominator) if whole and rest else None


SPELLINGS: dict[str, Callable[[Fraction, random.Random], str | None]] = {
    "decimal": lambda v, r: _decimal(v),
    "padded decimal": lambda v, r: None if (text := _decimal(v)) is None else text + ("0" if "." in text else ".00"),
    "thousands": lambda v, r: _thousands(v, r.choice((",", "{,}", ",\\!", ", \\! "))),
    "scientific": lambda v, r: _scientific(v, r.choice(("e{}", "E{}", " \\times 10^{{{}}}", "\\cdot 10^{{{}}}"))),
    "fraction": lambda v, r: _fraction(v, r.choice(("{}/{}", "\\frac{{{}}}{{{}}}", "\\dfrac{{{}}}{{{}}}"))),
    "mixed": lambda v, r: _mixed(v, r.choice(("{} {}/{}", "{}\\frac{{{}}}{{{}}}", "{} \\frac{{{}}}{{{}}}"))),
    "equation": lambda v, r: f"{r.choice(('x', 'n', 'f(2)'))} = {_plain(v)}",
    "dollars": lambda v, r: None if (text := _decimal(v)) is None else f"\\${text}",
    "unit": lambda v, r: f"{_plain(v)} apples",
    "colour": lambda v, r: f"\\color{{red}}{{{_plain(v)}}}",
    "marks": lambda v, r: f"\ufeff\u200e{_plain(v)}\u200f",
    "about": lambda v, r: f"\\approx {_plain(v)}",
    "choice": lambda v, r: f"(C) {_plain(v)}",
    "size": lambda v, r: None if (text := _decimal(v / 10**6)) is None else f"{text} {r.choice(('million', 'Million'))}",
    "spaced": lambda v, r: f"  {_plain(v)} . ",
}


def spelled(value: Fraction, rng: random.Random) -> str:
    """The value in one of its spellings."""
    while (text := rng.choice(list(SPELLINGS.values()))(value, rng)) is None:
        pass
    return text


def _integer(rng: random.Random, low: int = 1, digits: int = 3) -> int:
    return rng.randint(low, 10 ** rng.randint(1, digits))


def _listed(rng: random.Random) -> tuple[int, int]:
    return rng.randint(1, 999), rng.randint(100, 999)


def _wrong_list(rng: random.Random) -> tuple[str, str]:
    first, second = _listed(rng)
    return f"{first}{second}", f"x={first} \\text{{ or }} x={second}"


def _wrong_degrees(rng: random.Random) -> tuple[str, str]:
    first, second = _listed(rng)
    return f"{first}^\\circ,{second}^\\circ", f"{first}{second}"


def _euler(rng: random.Random) -> tuple[str, str]:
    factor, power = rng.randint(1, 9), rng.randint(1, 9)
    return rng.choice(((f"{factor}e{power}", f"{factor * power}e"), (f"e-{power}", f"1e-{power}")))


def _after(*words: str) -> Callable[[random.Random], tuple[str, str]]:
    def made(rng: random.Random) -> tuple[str, str]:
        number, word = _integer(rng), rng.choice(words)
        return str(number), rng.choice((f"{number} {word}", f"{number} \\text{{ {word}}}"))

    return made


def _before(*words: str) -> Callable[[random.Random], tuple[str, str]]:
    def made(rng: random.Random) -> tuple[str, str]:
        number = _integer(rng, 0)
        return str(number), f"{rng.choice(words)} {number}"

    return made


def _alternative(rng: random.Random) -> tuple[str, str]:
    number = rng.choice((0, _integer(rng)))
    return str(number), f"{rng.choice(('x', str(number + 17)))} or {number}"


def _function(rng: random.Random) -> tuple[str, str]:
    name = rng.choice("IfgPQ")
    return rng.choice(((f"{name}(0)", "0=0"), ("0", f"{name}(0)")))


def _powers(rng: random.Random) -> tuple[str, str]:
    number, (low, high) = _integer(rng), rng.sample(range(2, 7), 2)
    unit = rng.choice(("m", "\\text{ m}", "\\text{ cm}", "cm"))
    return f"{number} {unit}^{low}", f"{number} {unit}^{high}"


WRONG_KINDS: dict[str, Callable[[random.Random], tuple[str, str]]] = {
    "list joined to thousands": _wrong_list,
    "degrees joined to thousands": _wrong_degrees,
    "e of an exponent": _euler,
    "operation in words": _after(*(f"{sign} {word}" for sign in ("minus", "plus", "times", "over") for word in SMALL_WORDS)),
    "size in words": _after("hundredths", "dozens", "million", "halves", "thousand", "tenths", "thirds"),
    "negation": _before("not", "no", "never", "\\not=", "\\neq", "\\not ="),
    "relation": _before("\\geq", "<", "\\not<", "at least", "under"),
    "alternative": _alternative,
    "function": _function,
    "prime": lambda rng: (str(n := _integer(rng)), f"{n}{rng.choice(chr(39) + '′')}"),
    "power of a unit": _powers,
}


def _right_scientific(rng: random.Random) -> tuple[str, str]:
    digits, power = rng.randint(1, 99) / 10, rng.choice((1, -1)) * rng.randint(1, 40)
    pair = [f"{digits}e{power}", f"{digits} \\times 10^{{{power}}}"]
    rng.shuffle(pair)
    return pair[0], pair[1]


def _right_list(rng: random.Random) -> tuple[str, str]:
    first, second = _listed(rng)
    return f"{first},{second}", rng.choice((f"{first}, {second}", f"{first}^\\circ, {second}^\\circ", f"{first}{second}"))


def _letters(rng: random.Random) -> tuple[str, str]:
    letters = rng.sample("ABCDE", rng.randint(2, 4))
    other = rng.sample(letters, len(letters))
    forms = (", ".join(other), ",".join(other), f"\\text{{{', '.join(other)}}}", ", ".join(f"\\text{{{o}}}" for o in other))
    return rng.choice((", ".join(letters), f"\\text{{{','.join(letters)}}}")), rng.choice(forms)


def _degrees(rng: random.Random) -> tuple[str, str]:
    angles = rng.sample(range(1, 360), rng.randint(2, 4))
    pair = [", ".join(f"{a}^\\circ" for a in angles), ", ".join(map(str, angles))]
    rng.shuffle(pair)
    return pair[0], pair[1]


def _fraction_of(rng: random.Random) -> tuple[str, str]:
    below = rng.randint(2, 9)
    return f"\\frac{{\\pi}}{{{below}}}", rng.choice((f"\\frac \\pi{below}", f"\\frac\\pi {below}", f"\\frac\\pi{{{below}}}"))


def _right_mixed(rng: random.Random) -> tuple[str, str]:
    below = rng.randint(2, 12)
    above, whole = rng.randint(1, below - 1), rng.randint(1, 50)
    gold = rng.choice((f"{whole * below + above}/{below}", f"{whole}\\frac{{{above}}}{{{below}}}"))
    return gold, f"{whole} {above}/{below}"


def _choice(rng: random.Random) -> tuple[str, str]:
    letter, number = rng.choice("ABCDE"), _integer(rng)
    stated = rng.choice((f"({letter}) {number}", f"\\text{{({letter}) }}{number}", f"\\textbf{{({letter})}}\\ {number}"))
    return rng.choice((letter, str(number))), stated


def _marked(rng: random.Random) -> tuple[str, str]:
    number = str(_integer(rng))
    forms = (
        "\\color{{red}}{{{}}}",
        "{{\\color{{blue}} {}}}",
        "\\textcolor{{red}}{{{}}}",
        "\ufeff{}",
        "\u200e{}",
        "\\approx {}",
    )
    return number, rng.choice(forms).format(number)


def _vulgar(rng: random.Random) -> tuple[str, str]:
    character, value = rng.choice((("½", "1/2"), ("¼", "1/4"), ("¾", "3/4"), ("⅓", "1/3"), ("⅝", "5/8")))
    whole = rng.randint(0, 9)
    return (f"{whole} {value}", f"{whole}{character}") if whole else (value, character)


def _summed(rng: random.Random) -> tuple[str, str]:
    low, name = rng.randint(0, 5), rng.choice("ikn")
    return f"\\sum_{{{name}={low}}}^{{m}} {name}^2", f"\\sum_{{{name} = {low}}}^{{m}}{name}^2"


def _separated(rng: random.Random) -> tuple[str, str]:
    size = rng.randint(2, 4)
    groups = [str(rng.randint(1, 999)), *(f"{rng.randint(0, 999):03d}" for _ in range(size - 1))]
    return ", \\! ".join(groups), "".join(groups)


def _spaced(rng: random.Random) -> tuple[str, str]:
    a, b = _integer(rng), _integer(rng)
    text = rng.choice((f"{a}x + {b}", f"( {a} , {b} )", f"f(x) = {a}x ^ {b}", f"{a} \\text{{ cm}}", f"\\{{ {a} , {b} \\}}"))
    return text, text.replace(" ", "")


RIGHT_KINDS: dict[str, Callable[[random.Random], tuple[str, str]]] = {
    "scientific": _right_scientific,
    "list or number": _right_list,
    "letters": _letters,
    "degrees": _degrees,
    "separated digits": _separated,
    "unbraced fraction": _fraction_of,
    "mixed number": _right_mixed,
    "sum": _summed,
    "choice with its value": _choice,
    "colour and marks": _marked,
    "fraction of one character": _vulgar,
    "spacing": _spaced,
}
