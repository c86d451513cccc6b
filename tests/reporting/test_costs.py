"""Costs of runs: those of scorers that run no model are known without being recorded."""

from __future__ import annotations

from hydra.utils import get_class
from omegaconf import OmegaConf
from support.run_records import trial

from oar_lightning.common.paths import conf_dir
from oar_lightning.credit.scorers import Capo, Spro
from oar_lightning.planning.scoring.base import FREE
from oar_lightning.reporting.costs import CPU, NO_PASSES, PASSES, cost


def test_scorers_without_passes_are_those_that_run_no_model() -> None:
    """But SPRO, whose pass is that of the reference, and CAPO, whose judge may be a model."""
    kinds = {file.stem: get_class(OmegaConf.load(file)["_target_"]) for file in (conf_dir() / "scorer").glob("*.yaml")}
    assert {name for name, kind in kinds.items() if issubclass(kind, FREE) and kind not in (Spro, Capo)} == set(NO_PASSES)


def test_they_cost_nothing_and_others_what_was_recorded() -> None:
    assert cost(trial(0.5, {"scorer": "oracle", "seed": 0}), {}, PASSES) == 0.0
    assert cost(trial(0.5, {"scorer": "oar_g", "seed": 0}), {}, PASSES) is None
    judges = {name: OmegaConf.load(conf_dir() / f"scorer/judge/{name}.yaml")["_target_"] for name in ("exact", "endpoint")}
    runs = {name: trial(0.5, {"scorer": "capo"}, params={"scorer.judge._target_": target}) for name, target in judges.items()}
    assert {name: cost(run, {}, PASSES) for name, run in runs.items()} == {"exact": 0.0, "endpoint": None}
    assert cost(trial(0.5, {"scorer": "oar_g", "seed": 0}, metrics={CPU: 7.0}), {}, CPU) == 7.0
