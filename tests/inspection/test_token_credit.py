"""The heat-map's tokens hold what credit assignment gave them."""

from __future__ import annotations

import pytest
from support.fixtures import built_in_policy

from oar_lightning.credit.scorers import Position
from oar_lightning.inspection.score import score
from oar_lightning.types import MathProblem


def test_a_token_s_advantage_is_its_weight_times_the_group_s() -> None:
    problem = MathProblem("Tom has 3 apples. Tom gets 4. How many?", "7")
    texts = ["3+4=7. \\boxed{7}", "3+4=8. \\boxed{8}", "3+4=9. \\boxed{9}"]
    scored = score(built_in_policy(), problem, texts, Position())
    assert [one.verdict for one in scored] == ["correct", "incorrect", "incorrect"]
    for one in scored:
        assert one.advantage is not None
        tokens = one.shown.tokens
        assert [t.advantage for t in tokens] == pytest.approx([t.weight * one.advantage for t in tokens])
        reasoning = [t.weight for t in tokens if t.region.name == "REASONING"]
        assert max(reasoning) > min(reasoning), "the weights differ"
        assert {t.weight for t in tokens if t.region.name != "REASONING"} == {1.0}
