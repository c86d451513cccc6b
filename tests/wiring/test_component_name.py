"""A run is named after the class that it uses, whatever option was chosen first."""

from __future__ import annotations

import pytest
from support.composing import composed_whole, without_hydra

from oar_lightning.wiring.component_name import component_name

pytestmark = pytest.mark.usefixtures("hydra_conf")

ENTROPY = "oar_lightning.credit.scorers.Entropy"


@pytest.mark.parametrize(
    ("overrides", "group", "name"),
    [
        (["+experiment=oar_g"], "scorer", "oar_g"),
        (["+experiment=oar_g"], "loss", "grpo"),
        (["gate=factorized"], "gate", "factorized"),
        (["scorer=total_effect_fast"], "scorer", "total_effect_fast"),
        (["+experiment=grpo", f"scorer._target_={ENTROPY}", "+scorer.token_budget=2048"], "scorer", "entropy"),
        (["~scorer", f"+scorer={{_target_:{ENTROPY}}}"], "scorer", "entropy"),
        (["scorer._target_=my_module.MyOwnScorer2"], "scorer", "my_own_scorer2"),
    ],
)
def test_the_name_is_that_of_what_is_built(overrides: list[str], group: str, name: str) -> None:
    assert component_name(without_hydra(composed_whole(*overrides)), group) == name
