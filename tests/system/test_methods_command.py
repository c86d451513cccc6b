"""Methods of the field from the command line: a run, its resumption and a run on two ranks end with one policy."""

from __future__ import annotations

import json
import zlib
from importlib import resources
from pathlib import Path

import pytest
import torch
from support.field_methods import METHODS, distance, policy, trained
from support.judge_server import Handler, Server, judge_server, wrong
from torch import Tensor

from oar_lightning.common.paths import conf_dir

TWO = ("trainer=ddp", "trainer.accelerator=cpu", "trainer.precision=32-true", "trainer.devices=2")
SUPERVISED = "supervised training; test_deepspeed_command.py, test_ddp.py"
BIG = "a setting of oar_g with a model that is not here; tests/tasks/test_recipes.py"
ELSEWHERE = {
    "oar_g": "its scores round by 1e-4, which becomes more than RANKS_DIFFER; test_deepspeed_command.py, test_ddp.py",
    "grpo": "what is compared with; here with a curriculum and entropy terms, alone in test_ddp.py",
    "smoke": "a setting of oar_g; test_main_job.py, test_launchers.py",
    **dict.fromkeys(("paper_qwen2_5_1_5b", "paper_qwen2_5_7b"), BIG),
    **dict.fromkeys(
        ("warm_start", *(f"warm_start_graph{kind}" for kind in ("", "_asides", "_hints", "_misconceptions"))), SUPERVISED
    ),
}
"""Experiment -> why it is none of the methods here, and what runs it."""
RANKS_DIFFER = 1e-3
"""How far the policy of two ranks may be from that of one, as a share of what was learned; rounding makes 2e-5 of it. Single
weights are not compared: AdamW divides a gradient by its size, and so the rounding of one that is nearly 0."""
METHODS_DIFFER = 1e-2
"""How far a method's policy must at least be from GRPO's: otherwise nothing of the method would have been compared."""


@pytest.fixture(scope="module")
def grpo(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Tensor]:
    return trained(tmp_path_factory.mktemp("grpo"), "whole", "+experiment=grpo")


def test_no_experiment_is_missing() -> None:
    run_here = {word.removeprefix("+experiment=") for words in METHODS.values() for word in words if "+experiment" in word}
    others = ELSEWHERE.keys() - {"grpo"}
    assert not run_here & others
    assert sorted(run_here | others) == sorted(path.stem for path in (conf_dir() / "experiment").glob("*.yaml"))


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("method", METHODS)
def test_a_resumed_run_and_one_on_two_ranks_end_with_the_policy_of_one_left_alone(
    method: str, grpo: dict[str, Tensor], tmp_path: Path
) -> None:
    settings = METHODS[method]
    whole = trained(tmp_path, "whole", *settings)
    former = tmp_path / "whole" / "checkpoints" / "previous.ckpt"
    assert torch.load(former, weights_only=True)["global_step"] == 2
    resumed = trained(tmp_path, "resumed", *settings, f"ckpt_path={former}")
    shared = trained(tmp_path, "shared", *settings, *TWO)
    learned = distance(whole, policy(resources.files("oar_lightning") / "assets" / "chain"))
    assert distance(whole, grpo) > METHODS_DIFFER * learned
    assert all(torch.equal(resumed[name], weight) for name, weight in whole.items()), distance(resumed, whole) / learned
    assert distance(shared, whole) <= RANKS_DIFFER * learned


def by_text(handler: Handler) -> None:
    """Calls a step wrong that depends on the solution alone, whoever asks and when."""
    steps = json.loads(handler.request_text)["steps"]
    wrong(1 + zlib.crc32(handler.request_text.encode()) % len(steps))(handler)


def judged(server: Server, folder: Path, name: str, calls: int, *overrides: str) -> tuple[dict[str, Tensor], list[str]]:
    """The policy with which a run with an endpoint's judge ends, and what the endpoint was asked, but for the two made-up
    solutions by which each rank of a start tries the judge."""
    before = len(server.requests)
    endpoint = ("scorer/judge=endpoint", f"scorer.judge.url={server.url}", "scorer.judge.model=mine")
    found = trained(folder, name, "+experiment=capo", *endpoint, f"scorer.judge.max_calls={calls}", *overrides)
    texts = [request["messages"][1]["content"] for request in server.requests[before:]]
    return found, [text for text in texts if "One step at a time" not in text and "The numbers are given" not in text]


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_an_endpoint_judges_alike_in_a_resumed_run_and_on_two_ranks(grpo: dict[str, Tensor], tmp_path: Path) -> None:
    """With a budget that suffices each solution is asked for once, by whichever rank has it."""
    pytest.importorskip("openai", reason="the extra judge is not installed")
    once = ("evaluation.heatmap=false",)  # which would have some judged again
    with judge_server(by_text) as server:
        whole, asked = judged(server, tmp_path, "whole", 1000, *once)
        former = tmp_path / "whole" / "checkpoints" / "previous.ckpt"
        resumed, asked_again = judged(server, tmp_path, "resumed", 1000, *once, f"ckpt_path={former}")
        shared, asked_by_two = judged(server, tmp_path, "shared", 1000, *once, *TWO)
    learned = distance(whole, policy(resources.files("oar_lightning") / "assets" / "chain"))
    assert distance(whole, grpo) > METHODS_DIFFER * learned
    assert all(torch.equal(resumed[name], weight) for name, weight in whole.items())
    assert distance(shared, whole) <= RANKS_DIFFER * learned
    assert 32 < len(asked) <= 64, "of 64 completions equal ones of a step once"
    assert sorted(asked_again) == sorted(asked[-len(asked_again) :]), "the last two of four steps"
    assert sorted(asked_by_two) == sorted(asked)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_judges_budget_is_that_of_all_starts_and_ranks(tmp_path: Path) -> None:
    """It is spent in the second of four steps: a resumed run asks for nothing more, and its later steps are the same."""
    pytest.importorskip("openai", reason="the extra judge is not installed")
    with judge_server(by_text) as server:
        whole, asked = judged(server, tmp_path, "whole", 24)
        former = tmp_path / "whole" / "checkpoints" / "previous.ckpt"
        resumed, asked_again = judged(server, tmp_path, "resumed", 24, f"ckpt_path={former}")
        begun = len(server.requests)
        _, asked_by_two = judged(server, tmp_path, "shared", 24, *TWO)
        of_two = len(server.requests) - begun
        unbound, _ = judged(server, tmp_path, "unbound", 1000)
    assert begun == 24 + 2, "two for the trial of the second start"
    assert (len(asked), asked_again) == (24 - 2, [])
    assert all(torch.equal(resumed[name], weight) for name, weight in whole.items())
    learned = distance(whole, policy(resources.files("oar_lightning") / "assets" / "chain"))
    assert distance(unbound, whole) > METHODS_DIFFER * learned, "judgements are missing"
    assert of_two <= 24
    assert 16 < len(asked_by_two) < 24
