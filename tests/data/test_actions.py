"""Numbers and operators in a text."""

from __future__ import annotations

import time

import pytest

from oar_lightning.data.actions import TextPattern
from oar_lightning.types import CausalSpans, MathProblem


def test_what_is_found() -> None:
    text = "So we get 7+14=21 apples, 1.5 each.\nThe answer is \\boxed{-3}."
    found = TextPattern()(MathProblem("", ""), text)
    assert [text[a:b] for a, b in found.spans] == ["7", "+", "14", "=", "21", "1.5", "-", "3"]
    assert TextPattern("a+")(MathProblem("", ""), "baab") == CausalSpans(((1, 3),))
    assert TextPattern()(MathProblem("", ""), "") == CausalSpans(())


def test_long_texts_take_no_time() -> None:
    begun = time.process_time()
    TextPattern()(MathProblem("", ""), "1." * 50_000 + "1,1" * 50_000)
    assert time.process_time() - begun < 1


def test_what_is_refused() -> None:
    with pytest.raises(ValueError, match=r"pattern='\(' \(scorer\.actions, scorer\.anchors\) is no regular expression"):
        TextPattern("(")
