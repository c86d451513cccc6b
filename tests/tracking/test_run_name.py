"""Names by which runs are told apart."""

from __future__ import annotations

import pytest

from oar_lightning.tracking.run_name import LONGEST, run_name

LONG = [f"gate.key_{n}={n}.25" for n in range(40)]


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        ([], "oar_g · seed 3"),
        (["+experiment=oar_g", "gate.tau=0.5"], "oar_g tau=0.5 · seed 3"),
        (["+experiment=oar_g", "+variant=asides", "seed=3", "logger.tags.a=b", "num_threads=1"], "oar_g asides · seed 3"),
        (["scorer=oar_p", "policy.lora=null", "trainer.max_steps=16384"], "oar_g oar_p lora=null max_steps=16384 · seed 3"),
        (["optimizer.lr=0.000312345678", "gate.tau=0.2", "gate.tau=0.4"], "oar_g lr=0.0003123 tau=0.4 · seed 3"),
        (["update.token_budget=1", "rollout.token_budget=2"], "oar_g update.token_budget=1 rollout.token_budget=2 · seed 3"),
        (["policy.name=/a/very/long/path/to/runs/policy"], "oar_g policy=…ong/path/to/runs/policy · seed 3"),
        (["+reward.terms.judge.api_key=word"], "oar_g api_key=*** · seed 3"),
        (
            ["data.prompt.template='a\nb'", "data/prompt=chat", "~evaluation"],
            "oar_g template=a b prompt=chat evaluation=deleted · seed 3",
        ),
    ],
)
def test_a_name_says_what_the_command_sets(overrides: list[str], expected: str) -> None:
    assert run_name("oar_g", overrides, 3) == expected


def test_a_name_is_never_long() -> None:
    assert run_name("x", LONG, 0).endswith(" · seed 0")
    assert len(run_name("x", LONG, 0)) < LONGEST + 30
    assert "more" in run_name("x", LONG, 0)
