"""Errors in one line."""

from __future__ import annotations

import pytest

from oar_lightning.common.messages import first_line, named_line, one_line


@pytest.mark.parametrize(
    ("error", "whole", "first"),
    [
        (ValueError(" a\n  b "), "a b", "a"),
        (OSError(), "OSError", "OSError"),
        (KeyError(), "KeyError", "KeyError"),
        (ValueError("\n \n"), "ValueError", "ValueError"),
        (ValueError("x" * 300), "x" * 300, "x" * 200),
    ],
)
def test_an_error_in_one_line(error: Exception, whole: str, first: str) -> None:
    assert (one_line(error), first_line(error)) == (whole, first)


def test_an_error_with_its_class() -> None:
    assert named_line(ValueError("a\nb")) == "ValueError: a"
    assert named_line(KeyError()) == "KeyError"
