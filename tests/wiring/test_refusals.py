"""What Hydra refuses is told with the key that was meant, not with Hydra's advice to add the mistyped one."""

from __future__ import annotations

import pytest
from hydra.errors import HydraException
from support.composing import composed

from oar_lightning.common.config_check import ConfigError
from oar_lightning.wiring.refusals import check_flags, explain, long_work, one_message, with_plus

pytestmark = pytest.mark.usefixtures("hydra_conf")


def refused(*overrides: str) -> str:
    """The message for a command with these overrides."""
    with pytest.raises(HydraException) as caught:
        composed(*overrides)
    message = explain(caught.value, overrides)
    assert "\n" not in message
    return message


TYPOS = {
    "gate.tua=0.5": "gate.tau=0.5",
    "gate.thau=0.5": "gate.tau=0.5",
    "sed=1": "seed=1",
    "nmae=x": "name=x",
    "tau=0.5": "gate.tau=0.5",
    "lr=1e-4": "optimizer.lr=1e-4",
    "trainer.lr=1e-4": "optimizer.lr=1e-4",
    "optimiser.lr=1e-4": "optimizer.lr=1e-4",
    "optimizer.learning_rate=1": "optimizer.lr=1",
    "max_step=10": "trainer.max_steps=10",
    "update.groupsize=4": "update.group_size=4",
    "group_size=4": "update.group_size=4",
    "rollout.max_tokens=9": "rollout.max_new_tokens=9",
    "temprature=1": "rollout.temperature=1",
    "policy.nam=x": "policy.name=x",
    "loss.kl=0.1": "loss.kl_coef=0.1",
    "schedule.warmup=3": "schedule.warmup_steps=3",
    "evaluation.n_samples=3": "evaluation.samples=3",
    "reward.weight.accuracy=1": "reward.weights.accuracy=1",
    "logger.uri=x": "logger.tracking_uri=x",
    "scrorer=oar_g": "scorer=oar_g",
    "experimnt=oar_g": "experiment=oar_g",
    "hydra.run.dri=x": "hydra.run.dir=x",
    "~gate.tua": "gate.tau",
}


@pytest.mark.parametrize(("typo", "meant"), TYPOS.items(), ids=str)
def test_a_mistyped_key_is_told_with_the_one_that_was_meant(typo: str, meant: str) -> None:
    assert refused("update.problems=4", typo) == f"unknown key {typo}; did you mean {meant}?"


def test_a_key_of_the_chosen_experiment_counts() -> None:
    assert (
        refused("+experiment=oar_g", "scorer.noise_sdt=1") == "unknown key scorer.noise_sdt=1; did you mean scorer.noise_std=1?"
    )


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("scorer.noise_std=1", "scorer=uniform has no such setting; scorer=oar_g, scorer=reference_oar_g have it"),
        ("policy.lora.r=8", "policy=chain has no such setting; policy=hf_lora has it"),
        ("engine.sleep=true", "engine=auto has no such setting; engine=vllm, engine=vllm_sleep have it"),
        ("data.train.paths=x", "data/train=chain has no such setting; data/train=files has it"),
        (
            "scorer@scorer.inner=oar_p",
            "scorer=uniform has no such setting; scorer=inverted, scorer=min_form, scorer=shuffled have it",
        ),
        ("xyzzy=1", "no key is similar: --cfg job shows all"),
        ("gate.xyzzy=1", "no key is similar: --cfg job shows all, a plus adds one of your own"),
        ("num_generations=16", "TRL's num_generations is update.group_size here"),
        ("loss.beta=0.1", "TRL's beta is loss.kl_coef here"),
        ("beta=0.1", "did you mean gate.beta=0.1? TRL's beta is loss.kl_coef here"),
        ("epsilon=0.1", "TRL's epsilon is loss.clip_low here (and loss.clip_high, which does not follow it)"),
        ("actor_rollout_ref.rollout.n=8", "verl's actor_rollout_ref.rollout.n is update.group_size here"),
        ("actor_rollout_ref.rollout.name=vllm", "verl's actor_rollout_ref.rollout.name is engine here"),
        ("run_name=mine", "did you mean logger.run_name=mine?"),
        ("vllm_enable_sleep_mode=true", "TRL's vllm_enable_sleep_mode is engine=vllm_sleep here"),
        ("loss.name=ppo", "an option is chosen by loss=...: bnpo, cispo, dapo, dr_grpo, grpo, gspo, gspo_token"),
        ("trainer.max_epochs=3", "a run's length is trainer.max_steps, in optimizer steps"),
        ("trainer.logger=false", "loggers are a group: logger=mlflow, logger=[mlflow,csv] or logger=none"),
    ],
)
def test_a_setting_of_another_option_names_those_that_have_it(override: str, message: str) -> None:
    assert refused(override) == f"unknown key {override}; {message}"


@pytest.mark.parametrize(
    ("override", "beginning", "options"),
    [
        ("scorer=oarg", "scorer=oarg: there is no such option; did you mean scorer=oar_g?", "ucas, uniform"),
        ("task=eval", "task=eval: there is no such option; did you mean task=evaluate?", "audit, benchmark"),
        ("+experiment=grop", "experiment=grop: there is no such option; did you mean experiment=grpo?", "warm_start"),
        ("data/prompt=chatt", "data/prompt=chatt: there is no such option; did you mean data/prompt=chat?", "chat, plain"),
        (
            "data/evaluation=[aime]",
            "data/evaluation=aime: there is no such option; did you mean data/evaluation=aime24?",
            "amc23",
        ),
        ("loss=ppo", "loss=ppo: there is no such option; the options of loss are: ", "dapo, dr_grpo, grpo"),
    ],
)
def test_a_mistyped_option_is_told_with_all_options(override: str, beginning: str, options: str) -> None:
    message = refused(override)
    assert message.startswith(beginning)
    assert options in message


@pytest.mark.parametrize(
    ("override", "parts"),
    [
        ("+gate.tau=0.5", ["the config has gate.tau already; leave out the plus: gate.tau=0.5"]),
        ("+scorer=oar_g", ["the config has scorer already; leave out the plus: scorer=oar_g"]),
        ("data.first_problems=4", ["data.first_problems is not set by", "a plus adds it: +data.first_problems=4"]),
        ("~data.first_problems", ["data.first_problems is not set by", "so there is nothing to leave out"]),
        ("gate.tau", ["gate.tau cannot be read", "write key=value"]),
        ("gate.tau=[0.5", ["gate.tau=[0.5 cannot be read", "quote what"]),
        ("gate:tau=0.5", ["gate:tau=0.5 cannot be read", "write key=value"]),
        ("gate.tau=0.1,0.2", ["gate.tau=0.1,0.2: several values are a grid, which takes -m"]),
        ("+experiment=oar_g,grpo", ["+experiment=oar_g,grpo: several values are a grid, which takes -m"]),
        ("~gate.tau=3", ["The value of 'gate.tau' is 0.4 and not 3"]),
    ],
)
def test_other_refusals_keep_key_value_and_remedy(override: str, parts: list[str]) -> None:
    message = refused(override)
    for part in parts:
        assert part in message


@pytest.mark.parametrize(
    ("error", "keeps"), [(OSError(2, "gone", "x"), True), (ValueError("x"), True), (ConfigError("x"), False)]
)
def test_errors_of_the_long_work_keep_their_traceback_but_for_those_that_say_all(
    error: Exception, keeps: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(type(error) if keeps else SystemExit), one_message(), long_work():
        raise error
    assert ("hydra.run.dir" in capsys.readouterr().err) is False
    with pytest.raises(SystemExit), one_message():  # before it
        raise type(error)(*error.args)


def test_of_two_experiments_one_is_to_be_left_out() -> None:
    given = ("+experiment=smoke", "+experiment=grpo")
    assert refused(*given) == "+experiment=smoke +experiment=grpo: one experiment can be chosen; leave out all but one of them"


def test_a_group_that_is_written_out_is_told_how_an_object_is_given() -> None:
    said = refused("scorer={_target_: mine.make, _partial_: true}")
    assert "write '~scorer' '+scorer={_target_: mine.make, _partial_: true}'" in said


def test_groups_that_are_only_added_may_be_written_without_the_plus() -> None:
    kept = ["-m", "scorer=oar_p", "+experiment=grpo", "name=experiment=x", "gate.tau=0.5"]
    written = ["experiment=oar_g,grpo", "variant=asides", "sweeps=smoke"]
    assert with_plus(kept + written) == kept + [f"+{argument}" for argument in written]


@pytest.mark.parametrize("value", ["false", "3", "null"])
def test_a_group_whose_value_is_no_name_is_told_with_its_options(value: str) -> None:
    with pytest.raises(ValueError) as caught:  # noqa: PT011  (Hydra's own)
        composed("seed=1", f"logger={value}")
    said = explain(caught.value, ["seed=1", f"logger={value}"])
    assert said == f"logger={value}: logger takes the name of an option: csv, mlflow, none, tensorboard, trackio, wandb"


@pytest.mark.parametrize(
    ("argument", "advice"),
    [
        ("--learning_rate=1e-5", ": TRL's learning_rate is optimizer.lr here"),
        ("--num-generations", ": TRL's num_generations is update.group_size here"),
        ("--lr", ": verl's actor_rollout_ref.actor.optim.lr is optimizer.lr here"),
        ("--tau", ", e.g. optimizer.lr=1e-5"),
    ],
)
def test_a_setting_that_is_written_like_a_flag_is_told_how_settings_are(
    argument: str, advice: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        check_flags(["+experiment=grpo", argument, "8"])
    assert ended.value.code == 1
    said = capsys.readouterr().err.strip()
    assert said == f"{argument} is no flag; settings are written key=value, without dashes{advice}"
    check_flags(["-m", "--multirun", "--cfg", "job", "--config-dir=x", "a=--b"])
