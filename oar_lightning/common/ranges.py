"""The ranges of settings, stated once: in the annotations of the class or function that they configure.

    @checked("gate")
    @dataclass(frozen=True)
    class BilevelGate(Gate):
        tau: Annotated[Fraction, "a quantile"] = 0.4
        mode: Literal["both", "off"] = "both"

`checked` refuses other values where an object is made. A config's are refused before the slow imports: `config_check` reads the
annotations from the source. Ranges are those of `annotated_types`; a text says what the value is.
"""

from __future__ import annotations

import functools
import inspect
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import is_dataclass
from numbers import Integral, Real
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, NamedTuple, TypeVar, Union, get_args, get_origin, get_type_hints

from annotated_types import Interval, Predicate

T = TypeVar("T")

PositiveInt = Annotated[int, Interval(ge=1)]
NonNegativeInt = Annotated[int, Interval(ge=0)]
Positive = Annotated[float, Interval(gt=0)]
"""Infinity included."""
PositiveFloat = Annotated[float, Interval(gt=0, lt=math.inf)]
NonNegativeFloat = Annotated[float, Interval(ge=0, lt=math.inf)]
Finite = Annotated[float, Interval(gt=-math.inf, lt=math.inf)]
Fraction = Annotated[float, Interval(ge=0, le=1)]
PositiveFraction = Annotated[float, Interval(gt=0, le=1)]
Probability = Annotated[PositiveFraction, "a probability"]
ProperFraction = Annotated[float, Interval(ge=0, lt=1)]
Never = Annotated[None, "never"]
"""Null, where it means that."""


def rises(pair: object) -> bool:
    """[low, high] with 0 <= low < high."""
    numbers = [one for one in pair if isinstance(one, int | float)] if isinstance(pair, Sequence) else []
    return len(numbers) == 2 and 0 <= numbers[0] < numbers[1]


RisingPair = Annotated[Sequence[float], Predicate(rises)]


NOUNS: dict[Any, str] = {
    int: "an integer",
    float: "a number",
    bool: "true or false",
    str: "a text",
    NoneType: "null",
    list: "a list",
    tuple: "a list",
    Mapping: "settings by name",
    Sequence: "a list",
}
"""Types in words."""

PLURALS: dict[Any, str] = {str: "texts", int: "integers", float: "numbers", bool: "true or false"}
"""Types of a list's entries in words."""


class Kind(NamedTuple):
    """One of the types of a union, and what its annotation says of its values."""

    type: Any
    said: tuple[Any, ...] = ()

    @property
    def ranges(self) -> list[Interval | Predicate]:
        return [one for one in self.said if isinstance(one, Interval | Predicate)]

    @property
    def is_limited(self) -> bool:
        return bool(self.ranges) or get_origin(self.type) is Literal

    @property
    def words(self) -> str:
        return next((one for one in self.said if isinstance(one, str)), "")

    @property
    def noun(self) -> str:
        """The type in words."""
        if get_origin(self.type) is Literal:
            choices = get_args(self.type)
            return ("one of " if len(choices) > 1 else "") + ", ".join(map(str, choices))
        if not self.is_plain and (names := getattr(self.type, "__annotations__", None)):
            return f"a group of settings ({', '.join(names)})"
        kind = get_origin(self.type) or self.type
        entries = PLURALS.get(next(iter(get_args(self.type)), None)) if kind in (list, tuple, Sequence) else None
        return NOUNS.get(kind, str(getattr(kind, "__name__", kind))) + (f" of {entries}" if entries else "")

    @property
    def is_plain(self) -> bool:
        """Whether a config can hold its values; objects of this package it cannot."""
        return not str(getattr(self.type, "__module__", "")).startswith("oar_lightning.")

    def has(self, value: object) -> bool:
        """Whether a value is of this type, whatever the type's parameters; a list stands for a tuple, too."""
        if get_origin(self.type) is Literal:
            return value in get_args(self.type)
        if self.type in (int, float):
            return isinstance(value, Integral if self.type is int else Real) and not isinstance(value, bool)
        kind = get_origin(self.type) or self.type
        return not isinstance(kind, type) or isinstance(value, list if kind is tuple and isinstance(value, list) else kind)

    def holds(self, value: object) -> bool:
        """Whether a value is of this type and in its ranges."""
        return self.has(value) and all(_contains(one, value) for one in self.ranges)

    def describe(self, value: object) -> str:
        """What it asks of a value. Of a number that is told without the word."""
        if self.type is NoneType:
            return f"null for {self.words}" if self.words else "null"
        ranges = " and ".join(map(_describe, self.ranges))
        if ranges and (self.has(value) or isinstance(self.ranges[0], Predicate)):
            return ranges
        return f"{self.noun} {ranges}".strip().replace("a number finite", "a finite number").replace("number and", "number")


def kinds(hint: Any) -> Iterator[Kind]:
    """The types that a hint allows."""
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is Annotated:
        inner, *said = arguments
        for kind in kinds(inner):
            yield kind if kind.type is NoneType and inner is not NoneType else Kind(kind.type, (*kind.said, *said))
    elif origin in (Union, UnionType):
        for argument in arguments:
            yield from kinds(argument)
    else:
        yield Kind(NoneType if hint is None else hint)


def refusal(key: str, value: object, hint: Any) -> str | None:
    """What is wrong with a value by the ranges and choices of its hint; None where nothing is."""
    allowed = list(kinds(hint))
    limited = any(kind.is_limited for kind in allowed)
    return demand(key, value, hint) if limited and not any(kind.holds(value) for kind in allowed) else None


def demand(key: str, value: object, hint: Any) -> str:
    """The message for a value that its hint does not allow."""
    allowed = list(kinds(hint))
    words = next((kind.words for kind in allowed if kind.words and kind.type is not NoneType), "")
    told_kinds = dict.fromkeys(kind.describe(value) for kind in allowed if kind.is_plain or len(allowed) == 1)
    if list(told_kinds) == ["null"]:  # instead of an object, which the key's group of settings makes
        told_kinds = dict.fromkeys(["a group of settings", *told_kinds])
    *others, last = told_kinds
    told = f"{', '.join(others)} or {last}" if others else last
    told = told.replace(" or null for ", ", or null for ")
    return f"{key}{f' is {words} and' if words else ''} must be {told}, got {value!r}"


class Rule(NamedTuple):
    """What several settings have to fulfil together.

    holds: a lambda; its parameters are the settings that it reads. It may use built-in functions.
    message: for settings that break it; ``{name}`` stands for a setting's value.
    """

    holds: Callable[..., bool]
    message: str


def broken(rules: Sequence[Rule], values: Mapping[str, Any]) -> str | None:
    """The message of the first rule that values break; rules that read others are left out."""
    for rule in rules:
        read = inspect.signature(rule.holds).parameters
        if all(name in values for name in read) and not rule.holds(*(values[name] for name in read)):
            return rule.message.format(**values)
    return None


def checked(where: str, *rules: Rule) -> Callable[[type[T]], type[T]]:
    """A decorator of classes, which refuse arguments outside of the ranges and choices that their annotations state.

    Args:
        where: the place of such an object in a config, for the message of the ValueError; empty where it has many.
        rules: what arguments have to fulfil besides.
    """

    def decorate(cls: type[T]) -> type[T]:
        make = cls.__init__
        signature = inspect.signature(make)
        defaults = {name: one.default for name, one in signature.parameters.items() if one.default is not one.empty}
        hints = functools.cache(lambda: hints_of(cls))

        @functools.wraps(make)
        def __init__(self: T, *args: Any, **kwargs: Any) -> None:
            try:
                given = signature.bind_partial(self, *args, **kwargs).arguments
            except TypeError:  # which the call below raises with the name of the class
                given = {}
            for name, value in given.items():
                if name in hints() and (text := refusal(f"{where}.{name}".lstrip("."), value, hints()[name])):
                    raise ValueError(text)
            if text := broken(rules, defaults | given):
                raise ValueError(text)
            make(self, *args, **kwargs)

        cls.__init__ = __init__  # type: ignore[assignment]
        return cls

    return decorate


def hints_of(target: Any) -> dict[str, Any]:
    """The type hints of a class's or a function's parameters, with all that they say; those that can be resolved."""
    if not inspect.isclass(target):
        return _resolved(inspect.unwrap(target))
    # of a dataclass the fields too: what one inherits from another file may name what its own file does not know
    return _resolved(inspect.unwrap(target.__init__)) | (_resolved(target) if is_dataclass(target) else {})


def _resolved(annotated: Any) -> dict[str, Any]:
    try:
        return get_type_hints(annotated, include_extras=True)
    except (NameError, TypeError, AttributeError):  # hints under TYPE_CHECKING, or none at all: nothing to check by
        return {}


def _contains(stated: Interval | Predicate, value: Any) -> bool:
    if isinstance(stated, Predicate):
        return stated.func(value)
    return (
        (stated.gt is None or value > stated.gt)
        and (stated.ge is None or value >= stated.ge)
        and (stated.lt is None or value < stated.lt)
        and (stated.le is None or value <= stated.le)
    )


def _describe(stated: Interval | Predicate) -> str:
    if isinstance(stated, Predicate):
        return (inspect.getdoc(stated.func) or stated.func.__name__).rstrip(".")
    low = [f"{sign} {end}" for sign, end in ((">", stated.gt), (">=", stated.ge)) if end is not None]
    high = [f"{sign} {end}" for sign, end in (("<", stated.lt), ("<=", stated.le)) if end is not None]
    if (stated.gt, stated.lt) == (-math.inf, math.inf):
        return "finite"
    if low and stated.lt == math.inf:
        return f"finite and {low[0]}"
    if low and high:
        left, right = ("[" if stated.gt is None else "("), ("]" if stated.lt is None else ")")
        return f"in {left}{low[0].split()[1]}, {high[0].split()[1]}{right}"
    return " and ".join(low + high)
