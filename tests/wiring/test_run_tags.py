"""The name and description that a run has in MLflow."""

from __future__ import annotations

import pytest
from hydra.utils import instantiate
from support.composing import composed_whole, without_hydra

from oar_lightning.common.config_check import ConfigError
from oar_lightning.sweep import trial
from oar_lightning.tracking.mlflow_store import MLflowConfig
from oar_lightning.wiring import run_tags

pytestmark = pytest.mark.usefixtures("hydra_conf")

NOTE = "mlflow.note.content"


def presented(*overrides: str) -> MLflowConfig:
    cfg = without_hydra(composed_whole(*overrides, cwd="/x"))
    return run_tags.presented(instantiate(cfg.logger, _convert_="all"), cfg)


def test_a_run_says_what_it_is() -> None:
    config = presented("+experiment=oar_g", "gate.tau=0.5", "seed=7", "data.prompt.template='a b'")
    assert config.run_name == "oar_g tau=0.5 template=a b · seed 7"
    method, command, facts = config.tags[NOTE].split("\n\n")  # type: ignore[attr-defined]
    assert method == "**Loss grpo, scorer oar_g, gate bilevel (tau 0.5, beta 2.0, floor 0.1); lr 0.0006**"
    assert (
        command == "` python -m oar_lightning +experiment=oar_g gate.tau=0.5 seed=7 'data.prompt.template='\"'\"'a b'\"'\"'' `"
    )
    assert facts.startswith("Task train, data chain, evaluated on chain; policy chain; code ")


@pytest.mark.parametrize(
    ("overrides", "method"),
    [
        (["+experiment=grpo"], "Loss grpo, every token the same credit; lr 0.0006"),
        (
            ["scorer=oar_g", "gate=select"],
            "Loss grpo, scorer oar_g, gate select (share 0.2, over step, denominator kept)",
        ),
        (["task=evaluate", "evaluation.samples=8"], "8 samples a problem at temperature 1.0"),
        (["+experiment=warm_start"], "Supervised training on demonstrations"),
        (["task=benchmark"], "Seconds of each phase of a step"),
    ],
)
def test_every_task_that_logs_has_a_method(overrides: list[str], method: str) -> None:
    assert str(presented(*overrides).tags[NOTE]).startswith(f"**{method}")


def test_a_users_own_name_and_description_stay() -> None:
    config = presented("logger.run_name=mine", "+logger.tags={mlflow.note.content: my text}")
    assert (config.run_name, config.tags[NOTE]) == ("mine", "my text")


def test_a_trial_has_its_number_first(monkeypatch: pytest.MonkeyPatch) -> None:
    ticket = trial.Ticket("tau", 12, 1, {"gate.tau": 0.3}, "x.db")
    monkeypatch.setattr(run_tags, "current_ticket", lambda: ticket)
    assert presented("+experiment=oar_g", "gate.tau=0.3", "gate.beta=3").run_name == "#12 tau=0.3 · seed 0"
    assert presented("logger.run_name=mine").run_name == "#12 mine"


def test_a_command_with_backticks_stays_one_piece_of_code() -> None:
    note = str(presented("data.prompt.template='a ``b`` c'").tags[NOTE])
    assert note.split("\n\n")[1].startswith("``` python -m")
    assert note.split("\n\n")[1].endswith(" ```")


def test_a_command_without_end_is_cut() -> None:
    note = str(presented(f"data.prompt.template={'x' * 9000}").tags[NOTE])
    assert len(note) < 8000
    assert "whole: tag overrides" in note


def test_only_a_task_that_exports_registers() -> None:
    assert presented("logger.register_as=chain").register_as == "chain"
    with pytest.raises(ConfigError, match=r"logger.register_as=chain .*task=train and task=warm_start.* leave it out"):
        presented("task=evaluate", "logger.register_as=chain")


def test_parameters_have_no_credentials() -> None:
    own = ["+reward.terms.judge={_target_: mine.Judge, api_key: word, url: 'http://me:word@host/v1'}"]
    cfg = without_hydra(composed_whole("+experiment=oar_g", *own, cwd="/x"))
    assert run_tags.run_parameters(cfg)["reward"]["terms"]["judge"] == {
        "_target_": "mine.Judge",
        "api_key": "***",
        "url": "http://host/v1",
    }
