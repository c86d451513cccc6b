"""Ranges in annotations: the same refusal of a config, read from the source, and where an object is made."""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pydoc import locate
from typing import Annotated, Any, Literal

import pytest
from annotated_types import Interval

from oar_lightning.common.config_check import ConfigError, check_targets
from oar_lightning.common.paths import conf_dir
from oar_lightning.common.ranges import (
    Finite,
    Fraction,
    Never,
    NonNegativeFloat,
    Positive,
    PositiveInt,
    ProperFraction,
    RisingPair,
    Rule,
    checked,
    kinds,
    refusal,
)
from oar_lightning.common.source_signatures import source_signature

INF, NAN = float("inf"), float("nan")


@pytest.mark.parametrize(
    ("hint", "held", "refused", "told"),
    [
        (PositiveInt, [1, 10**9], [0, -3], ">= 1"),
        (PositiveInt, [], ["x", 1.5, True, None], "an integer >= 1"),
        (Fraction, [0, 0.5, 1], [-1e-9, 1.1, INF, NAN], "in [0, 1]"),
        (Fraction, [], ["1", None, False], "a number in [0, 1]"),
        (ProperFraction, [0, 0.99], [1], "in [0, 1)"),
        (NonNegativeFloat, [0, 1e300], [-1, INF, NAN], "finite and >= 0"),
        (NonNegativeFloat, [], ["x"], "a finite number >= 0"),
        (Finite, [-1e300, 0], [INF, -INF, NAN], "finite"),
        (Finite, [], ["x"], "a finite number"),
        (Positive, [INF, 1e-300], [0, -INF], "> 0"),
        (Annotated[int, Interval(le=3)], [3, -8], [4], "<= 3"),
        (PositiveInt | Literal["auto"] | None, [1, "auto", None], [0], ">= 1, auto or null"),
        (Fraction | Never, [0.5, None], [2], "in [0, 1], or null for never"),
        (Literal["a", "b"], ["a"], ["c", 1, ["a"]], "one of a, b"),
        (RisingPair | None, [[0, 1], (0.5, 2.0), None], [[1, 1], [2, 1], [-1, 1]], "[low, high] with 0 <= low < high or null"),
        (RisingPair, [], [[], [1], [1, "x"], [0, 1, 2]], "[low, high] with 0 <= low < high"),
        (int | str, [-5, "x", [], None], [], ""),  # states no range: any value is left to the check of types
    ],
)
def test_what_a_hint_holds_and_asks_for(hint: Any, held: Sequence[Any], refused: Sequence[Any], told: str) -> None:
    assert [refusal("a.b", value, hint) for value in held] == [None] * len(held)
    assert [refusal("a.b", value, hint) for value in refused] == [f"a.b must be {told}, got {value!r}" for value in refused]


def test_words_say_what_a_value_is() -> None:
    hint = Annotated[PositiveInt, "a number of tokens"] | None
    assert refusal("length", 0, hint) == "length is a number of tokens and must be >= 1 or null, got 0"
    assert [kind.words for kind in kinds(Annotated[PositiveInt | None, "outside"])] == ["outside", ""]


@checked("plug", Rule(lambda low, high: low < high, "plug.low={low} lies above plug.high={high}"))
@dataclass(frozen=True)
class Plug:
    low: NonNegativeFloat = 0.0
    high: float = 1.0
    mode: Literal["a", "b"] = "a"


@checked("")
class Plain:
    def __init__(self, inner: Any, size: PositiveInt = 1, unknown: NotImported = 3) -> None:  # type: ignore[name-defined] # noqa: F821
        self.size = size


def test_objects_are_checked_where_they_are_made() -> None:
    assert Plug(0.5, high=2) == Plug(low=0.5, high=2)
    for make, told in (
        (lambda: Plug(-1), "plug.low must be finite and >= 0, got -1"),
        (lambda: Plug(3), "plug.low=3 lies above plug.high=1.0"),
        (lambda: Plug(0.5, 0.1), "plug.low=0.5 lies above plug.high=0.1"),
    ):
        with pytest.raises(ValueError, match=f"^{re.escape(told)}$"):
            make()
    with pytest.raises(TypeError, match="unexpected keyword argument 'lo'"):
        Plug(lo=1)  # type: ignore[call-arg]
    assert Plain(None, 0).size == 0, "with a hint that cannot be resolved nothing is known of the others"


OUTSIDE = (0, -1, 1.5, 10**9, -INF, "no such choice", [2.0, 1.0])


def bad_value(hint: Any) -> Any:
    """A value outside of a hint's ranges, of a type that it allows where there is one."""
    refused = [value for value in OUTSIDE if refusal("", value, hint)]
    return next((value for value in refused if any(kind.has(value) for kind in kinds(hint))), refused[0])


@functools.cache
def limited() -> list[tuple[str, str, Any]]:
    targets = sorted(
        {
            t
            for p in conf_dir().rglob("*.yaml")
            for t in re.findall(r"_target_: (oar_lightning(?!.distributed)[\w.]+)", p.read_text())
        }
    )
    found = [(target, signature.hints) for target in targets if (signature := source_signature(target))]
    return [(t, n, h) for t, hints in found for n, h in hints.items() if any(kind.is_limited for kind in kinds(h))]


def refused_by(make: Any) -> str:
    try:
        make()
    except (ValueError, TypeError) as error:
        return str(error)
    return ""


@pytest.mark.parametrize("target", sorted({target for target, _, _ in limited()}))
def test_each_class_refuses_what_its_source_says(target: str) -> None:
    """All classes that conf/ names, but for Lightning's strategies.

    A class that states a range and is not `checked` fails here.
    """
    cls: Any = locate(target)
    for name, hint in [(n, h) for t, n, h in limited() if t == target]:
        value = bad_value(hint)
        node: Mapping[str, Any] = {"_target_": target, "_partial_": True, name: value}
        with pytest.raises(ConfigError) as early:
            check_targets({"here": node}, import_them=False)
        made = refused_by(lambda name=name, value=value: cls(**{name: value}))
        assert made, f"{target} takes {name}={value!r}: is it decorated with `checked`?"
        # the tests' own check of types is asked first of a class of which there was an instance before
        if not re.search("type hint|type-check|violates|missing a required argument", made, re.IGNORECASE):
            assert made.rpartition(name)[2] == str(early.value).rpartition(f"here.{name}")[2], made


def test_many_settings_state_a_range() -> None:
    assert len(limited()) > 120
