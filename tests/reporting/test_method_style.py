"""One look for a method on all pages."""

from __future__ import annotations

from oar_lightning.reporting.method_style import GREY, PALETTE, STYLES, colors_of


def test_no_two_methods_have_one_colour() -> None:
    assert len({style.color for style in STYLES.values()}) == len(STYLES)


def test_a_method_has_its_colour_whatever_is_beside_it() -> None:
    assert colors_of(["oar_p", "oar_g"]) == [STYLES["oar_p"].color, STYLES["oar_g"].color]
    assert colors_of(["mine", "oar_g"])[1] == STYLES["oar_g"].color


def test_settings_and_methods_of_a_user_get_colours_far_from_the_others() -> None:
    assert colors_of([None, None, None]) == [*PALETTE[:3]]
    assert colors_of(["oar_p", "oar_p", "oar_g"])[:2] == [PALETTE[0], PALETTE[2]], "one method twice; blue is OAR-G's"
    assert PALETTE[0] not in colors_of(["oracle", "mine"]), "orange is perfect credit's"
    assert len({*colors_of([f"mine{i}" for i in range(9)]), GREY}) == 10
    assert GREY in colors_of([f"mine{i}" for i in range(10)], used=())
