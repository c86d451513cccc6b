"""task=lab with the past of a run: its scores against plain softmaxes of the run's files, and what it refuses."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from support.composing import Prepare
from support.fixtures import built_in_policy
from support.toy import tools
from torch import Tensor
from transformers import AutoModelForCausalLM

from oar_lightning.common.config_check import ConfigError
from oar_lightning.credit.gates import SignedGate
from oar_lightning.credit.scorers import OarG, Prime, Shuffled, Spro
from oar_lightning.lab.estimators import Estimator
from oar_lightning.lab.run import Lab
from oar_lightning.policy.pretrained import LoraSpec, PretrainedPolicy
from oar_lightning.tasks import lab as task
from oar_lightning.types import Rollouts
from oar_lightning.wiring.lab_past import check_past, read_past, with_past

SPRO, PRIME = Estimator("spro", Spro(), SignedGate()), Estimator("prime", Prime(), SignedGate())
CHAIN = PretrainedPolicy("chain")
TRAINED = ["+experiment=prime", "trainer.max_steps=2", "update.problems=2", "update.group_size=4", "optimizer.lr=1e-3"]
TRAINED += ["evaluation.every_n_steps=0", "evaluation.problems=1", "evaluation.samples=1", "evaluation.heatmap=false"]
QUIET = ["logger=none", "rollout.max_new_tokens=48", "rollout.temperature=0.9"]
LAB = ["task=lab", "lab.problems=2", "lab.samples=4", "lab.continuations=0", "lab.cache=cache.db", "lab.baseline=spro"]
LAB += [f"lab.{kind}=null" for kind in ("faithfulness", "stability", "gradients")]
DEFAULTS = ("random", "late", "early", "entropy", "improbability", "is_digit", "oracle", "oar_g", "oar_p", "information_gain")
LAB += [f"~lab.estimators.{name}" for name in (*DEFAULTS, "total_effect", "total_effect_fast")]
ADDED = [f"+scorer@lab.estimators.{name}.scorer={name}" for name in ("spro", "prime")]
ADDED += [
    "lab.estimators.spro.scorer.region=response",
    "lab.estimators.prime.scorer.lowest=0",
    "lab.estimators.prime.scorer.highest=1",
]


def a_run(folder: Path, scorer: Any, policy: Any = None, state: Any = None) -> str:
    """A run's folder with a config, and where it has a `state` a checkpoint."""
    (folder / "artifacts").mkdir(parents=True)
    config = {"scorer": scorer, "policy": {"name": "chain", "revision": None} if policy is None else policy}
    (folder / "artifacts" / "config.yaml").write_text(yaml.safe_dump(config))
    if state is not None:
        (folder / "checkpoints").mkdir()
        torch.save(state, folder / "checkpoints" / "last.ckpt")
    return str(folder)


def of(name: str) -> dict[str, Any]:
    return {"_target_": f"oar_lightning.credit.scorers.{name}"}


def logprobs(model: Any, rollouts: Rollouts) -> Tensor:
    """Of the response tokens at temperature 0.9, row by row without padding."""
    out = torch.zeros(rollouts.token_ids.shape, dtype=torch.float64)
    for row in range(len(rollouts)):
        mask = rollouts.attention_mask[row]
        ids = rollouts.token_ids[row][mask]
        with torch.no_grad():
            found = (model.eval()(ids[None]).logits[0, :-1].double() / 0.9).log_softmax(-1)
        out[row, mask] = torch.nn.functional.pad(found.gather(1, ids[1:, None])[:, 0], (1, 0))
    return out.masked_fill(~rollouts.response_mask, 0.0)


def test_scores_are_those_of_the_run_s_own_files(prepared: Prepare, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    prepared(*TRAINED, *QUIET, folder="trained")()
    (run,) = tmp_path.glob("outputs/prime/seed0/trained")
    other = a_run(tmp_path / "spro", {**of("Shuffled"), "inner": of("Spro")})
    labs: list[Lab] = []
    monkeypatch.setattr(task, "report", lambda job, lab, settings, whole: labs.append(lab))
    monkeypatch.setattr(task, "track", lambda *args: None)
    prepared(*LAB, *ADDED, *QUIET, "policy=hf", f"policy.name={run}/policy", f"lab.past=[{run},{other}]")()
    (lab,) = labs
    rollouts, found = lab.studied.rollouts, {e.name: e.scores for e in lab.estimates}
    assert lab.studied.problem == (0,) * 4 + (1,) * 4

    policy = AutoModelForCausalLM.from_pretrained(run / "policy")
    start = built_in_policy().model
    phi = built_in_policy().model
    state = torch.load(run / "checkpoints" / "last.ckpt", weights_only=True)["credit"]["scorer"]
    assert state["steps"] == 2
    phi.load_state_dict(state["weights"], strict=False)
    ref, mask = logprobs(start, rollouts), rollouts.response_mask
    for first in (0, 4):
        rows = list(range(first, first + 4))
        totals = [(0.05 * (logprobs(policy, rollouts) - ref))[row, mask[row]].cumsum(0) for row in rows]
        for row, total in zip(rows, totals, strict=True):
            means = [torch.stack([t[i] for t in totals if len(t) > i]).mean() for i in range(len(total))]
            torch.testing.assert_close(found["spro"][row, mask[row]].double(), total - torch.stack(means), atol=2e-6, rtol=0)
        index = torch.tensor(rows)
        part = dataclasses.replace(rollouts.select(index), group_size=4)
        ratios = 0.05 * (logprobs(phi, part) - logprobs(start, part))
        expected = Prime().advantages(None, part, ratios)
        torch.testing.assert_close(found["prime"][index, rollouts.columns(index)].double(), expected, atol=1e-3, rtol=1e-3)
    assert all(float(scores.abs().max()) > 1e-4 for scores in found.values())


@pytest.mark.parametrize(
    ("runs", "message"),
    [
        ([], r"lab\.estimators\.prime: Prime compares .* give a run of this scorer, lab\.past=\[<run folder>\], and"),
        (["Spro"], r"lab\.past=\[<run folder>\], not .*0 \(of scorer Spro\), and a policy that has been trained"),
        (["Prime", "Prime"], r"lab\.past names 2 runs of scorer Prime, .* leave out all but one of .*0, .*1"),
        (["Prime", "OarG"], r"lab\.past=.*1 is a run of scorer OarG, and no estimator is that compares with its past"),
    ],
)
def test_each_estimator_has_one_past_and_each_past_an_estimator(runs: list[str], message: str, tmp_path: Path) -> None:
    past = read_past([a_run(tmp_path / str(i), of(name)) for i, name in enumerate(runs)])
    plain = Estimator("oar_g", OarG(), SignedGate())
    with pytest.raises(ConfigError, match=message):
        check_past([plain, Estimator("prime", Shuffled(PRIME.scorer), SignedGate())], past)
    check_past([plain, SPRO, PRIME], read_past([a_run(tmp_path / name, of(name)) for name in ("Spro", "Prime")]))


@pytest.mark.parametrize("scorer", [None, "oar_g", ["a"]])
def test_a_folder_without_the_config_of_a_run(scorer: Any, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"lab\.past=.*run holds no config of a run"):
        read_past(a_run(tmp_path / "run", scorer))


def test_a_scorer_around_itself_does_not_hang(tmp_path: Path) -> None:
    endless: dict[str, Any] = of("Shuffled")
    endless["inner"] = endless
    assert read_past(a_run(tmp_path / "run", endless))[0].scorer == "Shuffled"


class Harmful:
    """Whose loading would run code."""

    def __reduce__(self) -> Any:
        return exec, ("raise SystemExit('code of a checkpoint was run')",)


def weights(change: Any = None) -> dict[str, Any]:
    found = {name: p.detach() for name, p in built_in_policy().model.named_parameters()}
    return {"steps": 1, "weights": found | (change or {}), "optimizer": {}}


@pytest.mark.parametrize(
    ("state", "message"),
    [
        (None, r"lab\.past=.*run: a folder without checkpoints/; give a run's folder or its checkpoints"),
        ({"credit": {}}, r"last\.ckpt holds nothing that its scorer has learnt; name a run that has made a step"),
        ({"credit": {"scorer": weights() | {"steps": 0}}}, r"last\.ckpt holds nothing that its scorer has learnt"),
        ({"credit": 5}, r"last\.ckpt is no checkpoint of this project that can be read"),
        (Harmful(), r"last\.ckpt is no checkpoint of this project that can be read \(Weights only load failed"),
        ({"credit": {"scorer": {"steps": 1}}}, r"run: what its scorer has learnt does not fit \('weights'\)"),
        ({"credit": {"scorer": weights({"model.norm.weight": torch.ones(3)})}}, "has trained other weights than this policy"),
        ({"credit": {"scorer": weights({"model.norm.weight": torch.ones(1)})}}, "has trained other weights than this policy"),
        ({"credit": {"scorer": weights({"more": torch.ones(3)})}}, "has trained other weights than this policy"),
    ],
)
def test_checkpoints_that_cannot_serve(state: Any, message: str, tmp_path: Path) -> None:
    past = read_past(a_run(tmp_path / "run", of("Prime"), state=state))
    with pytest.raises((ConfigError, ValueError), match=message):
        with_past(Estimator("prime", Prime(), SignedGate()), past, CHAIN, built_in_policy()).use(tools())


@pytest.mark.parametrize(
    ("policy", "message"),
    [
        ({"name": "chain"}, r"policy\.name=chain is the policy that lab\.past=.* began with, so that Spro scores 0 everywhere"),
        (
            {"name": "graph"},
            r"began with policy\.name=graph, whose tokens are others than those of the lab's pol",
        ),
        ({"name": "none/at/all"}, r"the policy that it began with: policy\.name=none/at/all"),
        ({}, r"lab\.past=.*: its config names no policy that can be loaded \(policy\.name=None"),
        ({"name": [1]}, r"lab\.past=.*: its config names no policy that can be loaded"),
    ],
)
def test_policies_that_cannot_serve(policy: Any, message: str, tmp_path: Path) -> None:
    past = read_past(a_run(tmp_path / "run", of("Spro"), policy))
    with pytest.raises(ConfigError, match=message):
        with_past(SPRO, past, CHAIN, built_in_policy())


def test_what_a_run_s_config_decides_of_its_policy(tmp_path: Path) -> None:
    """Its name, revision and adapters, but not whether code of a repository is run."""
    lora = {"_target_": "oar_lightning.policy.pretrained.LoraSpec", "r": 4, "target_modules": ["q_proj"]}
    policy = {"name": "mine", "revision": "a1", "trust_remote_code": True, "dtype": "bfloat16", "lora": lora}
    (run,) = read_past(a_run(tmp_path / "run", of("Prime"), policy))
    own = PretrainedPolicy("mine/policy", attention="eager")
    expected = dataclasses.replace(own, name="mine", revision="a1")
    assert run.spec(own, adapters=False) == expected
    assert run.spec(own, adapters=True) == dataclasses.replace(expected, lora=LoraSpec(r=4, target_modules=["q_proj"]))
