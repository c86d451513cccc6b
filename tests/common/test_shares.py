"""Against exact fractions."""

from fractions import Fraction

from oar_lightning.common.shares import count_of


def test_counts_are_those_of_the_decimal_that_was_written() -> None:
    wrong = 0
    for hundredths in range(101):
        for number in (0, 1, 7, 25, 100, 300, 4096):
            exact = -(-Fraction(hundredths, 100) * number // 1)
            assert count_of(hundredths / 100, number) == exact
            wrong += -int(-(hundredths / 100) * number // 1) != exact
    assert wrong, "floats alone would do"
