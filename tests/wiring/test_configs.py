"""Every config file composes, passes the checks and builds its settings; bad values and combinations name their key."""

from __future__ import annotations

import importlib.util
import itertools
import json
import re
from pathlib import Path

import pytest
import torch
from hydra.errors import HydraException
from support import fake_vllm
from support.composing import checked, composed, settings
from support.pages import ROOT

from oar_lightning.__main__ import check_config
from oar_lightning.command.comments import Header
from oar_lightning.common.config_check import ConfigError, check_targets
from oar_lightning.common.paths import conf_dir
from oar_lightning.credit.scorers import FunctionScorer, Inverted, OarG, OarP, Shuffled, Uniform
from oar_lightning.credit.scorers.hindsight.base import Hindsight
from oar_lightning.credit.teachers import GivenTeacher, LaggedPolicy, PolicyItself
from oar_lightning.data.chain.task import ChainProblems
from oar_lightning.data.files import FileProblems
from oar_lightning.data.generated import GeneratedProblems
from oar_lightning.policy.fresh import FreshPolicy
from oar_lightning.policy.pretrained import LoraSpec, PretrainedPolicy
from oar_lightning.rollout import AutoEngineConfig, HFEngineConfig, VllmConfig
from oar_lightning.tasks import prepare
from oar_lightning.wiring.config import plain
from oar_lightning.wiring.settings import build_settings


def names(group: str) -> list[str]:
    found = sorted(path.stem for path in (conf_dir() / group).glob("*.yaml"))
    assert found, group
    return found


pytestmark = pytest.mark.usefixtures("hydra_conf")


@pytest.fixture
def rows(tmp_path: Path) -> str:
    path = tmp_path / "rows.jsonl"
    path.write_text(json.dumps({"problem": "1+1?", "answer": "2", "solution": "\\boxed{2}"}) + "\n")
    return str(path)


def test_the_defaults() -> None:
    built = settings()
    assert isinstance(built.method.scorer, Uniform)
    assert isinstance(built.train, ChainProblems)
    assert built.policy == PretrainedPolicy("chain")
    assert (built.method.gate.tau, built.method.gate.beta, built.method.gate.floor) == (0.4, 2.0, 0.1)
    assert list(built.rewards.terms) == ["accuracy", "format", "overlong"]
    assert built.rewards.weight_vector().tolist() == [1.0, 0.0, 0.0]
    assert built.method.sampling.temperature == 1.0
    assert built.train.seed == 0
    held_out = built.eval_sets["chain"]
    assert isinstance(held_out, ChainProblems)
    assert (built.train.split, held_out.split) == ("train", "held_out")


# the paper's recipes need their data: tests/tasks/test_recipes.py
@pytest.mark.parametrize("name", [name for name in names("experiment") if not name.startswith("paper_")])
def test_experiments(name: str) -> None:
    built = settings(f"+experiment={name}")
    assert isinstance(built.policy, FreshPolicy) == (name in ("warm_start", "warm_start_graph")), "others go on from a policy"
    text = (conf_dir() / "experiment" / f"{name}.yaml").read_text()
    assert f"python -m oar_lightning +experiment={name}" in text.splitlines()[1], "it opens with the command that runs it"


NO_METHOD = {"dapo", "dr_grpo", "grpo", "oracle", "oracle_signed", "random", "smoke"}
"""Experiments of the main job whose credit is GRPO's, a control's or that of another's file."""
OURS = {"action_mask", "information_gain", "total_effect", "total_effect_fast"}
"""Methods without another source."""
CONFIDENCE = r"\b(code|restated|reconstructed|figure|abstract|ours)\b"


@pytest.mark.parametrize(
    "name", [n for n in names("experiment") if not n.startswith(("paper_", "warm_")) and n not in NO_METHOD]
)
def test_a_method_names_its_source_and_how_sure_its_formula_is(name: str) -> None:
    """The latter in the words that its row of docs/methods.md has for it, where it has a row."""
    told = Header.of(conf_dir() / "experiment" / f"{name}.yaml").words
    assert bool(re.search(r"arXiv \d{4}\.\d{5}|https://\S+", told)) == (name not in OURS), told
    found = set(re.findall(CONFIDENCE, told))
    assert found, told
    rows = re.findall(rf"\| ([^|]+) \| `\+experiment={name}` \|$", (ROOT / "docs" / "methods.md").read_text(), re.MULTILINE)
    assert len(rows) == (name not in ("entropy", "oar_p_approximate"))
    assert set(re.findall(CONFIDENCE, "".join(rows))) <= found, (rows, told)


@pytest.mark.parametrize("name", names("variant"))
def test_variants(name: str) -> None:
    """A variant changes task and policy, whatever the method; completions of its demonstrations fit its limit."""
    for experiment in ("grpo", "oracle"):
        built = settings(f"+experiment={experiment}", f"+variant={name}")
        assert type(built.method.scorer).__name__.lower() == {"grpo": "uniform"}.get(experiment, experiment)
        assert isinstance(built.policy, PretrainedPolicy)
        assert built.policy.name in (f"chain_{name}", name)
    assert isinstance(built.train, GeneratedProblems)
    assert built.train.task != settings().train.task  # type: ignore[union-attr]
    tokenizer = built.policy.load_tokenizer()
    longest = max(len(tokenizer(built.train[i].solution).input_ids) for i in range(200))
    assert longest < built.method.sampling.max_new_tokens
    text = (conf_dir() / "variant" / f"{name}.yaml").read_text()
    assert f"+variant={name}" in text.splitlines()[1], "it opens with a command that runs it"


def test_teachers() -> None:
    """Who reads hints, for each of their scorers; of a model of its own nothing is loaded yet."""
    kinds = {"policy": PolicyItself, "lagged": LaggedPolicy, "given": GivenTeacher}
    assert names("scorer/teacher") == sorted(kinds)
    for experiment, (name, kind) in itertools.product(("rlsd", "serl", "rlcsd"), kinds.items()):
        chosen = [f"scorer/teacher={name}", *(["scorer.teacher.name=a/b"] if name == "given" else [])]
        scorer = settings(f"+experiment={experiment}", *chosen).method.scorer
        assert isinstance(scorer, Hindsight)
        assert type(scorer.teacher) is kind
    with pytest.raises(ConfigError, match=r"scorer\.teacher\.every must be .*, got 0"):
        checked("+experiment=rlsd", "scorer.teacher.every=0")
    with pytest.raises(ConfigError, match=r"unknown key scorer\.teacher_every"):
        checked("+experiment=rlsd", "++scorer.teacher_every=3")


def gate_of(scorer: str) -> list[str]:
    """The gate that a scorer's file names in its opening comment, and what it asks for besides; OAR's for most."""
    text = (conf_dir() / "scorer" / f"{scorer}.yaml").read_text()
    named = re.search(r"; for (gate=\w+)(?: with ((?:gate|loss)\.\w+=\w+)(?: and (gate\.\w+=\w+))?)?\.$", text, re.MULTILINE)
    return [override for override in named.groups() if override] if named else []


@pytest.mark.parametrize("name", names("scorer"))
def test_scorers(name: str) -> None:
    built = settings(f"scorer={name}", *gate_of(name), "seed=3")
    assert type(built.method.scorer).__name__.lower() == name.removesuffix("_signed").replace("_", "")
    if hasattr(built.method.scorer, "seed"):
        assert built.method.scorer.seed == 3


@pytest.mark.parametrize(("name", "control"), [("shuffled", Shuffled), ("inverted", Inverted)])
@pytest.mark.parametrize(("inner", "kind"), [(None, OarG), ("oar_p", OarP)])
def test_controls_wrap_any_scorer(name: str, control: type, inner: str | None, kind: type) -> None:
    scorer = settings(f"scorer={name}", *([f"scorer@scorer.inner={inner}"] if inner else [])).method.scorer
    assert type(scorer) is control
    assert isinstance(scorer, Shuffled | Inverted)
    assert type(scorer.inner) is kind


@pytest.mark.parametrize("name", names("loss"))
def test_losses(name: str) -> None:
    built = settings(f"loss={name}")
    assert built.method.loss == settings(f"loss={name}", "scorer=uniform").method.loss
    if name != "gspo":
        settings(f"loss={name}", "scorer=oar_g")


@pytest.mark.parametrize("group", ["trainer", "optimizer", "reward", "logger", "data/prompt", "entropy"])
def test_other_groups(group: str) -> None:
    for name in names(group):
        settings(f"{group}={name}", *(["scorer=entropy"] if name == "explore" else []))


def test_engines(monkeypatch: pytest.MonkeyPatch) -> None:
    assert names("engine") == ["auto", "hf", "vllm", "vllm_sleep"]
    assert settings().engine == settings("engine=auto").engine == AutoEngineConfig()
    assert settings("engine=hf").engine == HFEngineConfig()
    fake_vllm.install(monkeypatch)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert settings("engine=vllm").engine == VllmConfig()
    config = settings("engine=vllm", "engine.sleep=true", "engine.max_model_len=512", "engine.dtype=bfloat16").engine
    assert config == VllmConfig(sleep=True, max_model_len=512, dtype="bfloat16")
    assert settings("engine=vllm_sleep", "trainer=ddp", "trainer.devices=8").engine == VllmConfig(0.4, sleep=True)
    for override, message in {
        "rollout.temperature=3": "rollout.temperature must be 0 or in [0.01, 2.0] with engine=vllm, got 3",
        "engine.tensor_parallel_size=2": "engine.tensor_parallel_size must be 1, got 2",
        "engine.dtype=float64": "engine.dtype must be one of auto, float32, bfloat16, float16, got 'float64'",
        "+engine.tp=2": "unknown key engine.tp",
    }.items():
        assert message in error_of("engine=vllm", override)


@pytest.mark.parametrize("task", ["train", "warm_start", "evaluate", "benchmark"])
def test_a_missing_vllm_is_reported_before_a_policy_is_loaded(task: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def loaded(self: object) -> None:
        raise AssertionError("the policy was loaded")

    monkeypatch.setattr(PretrainedPolicy, "load", loaded)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ImportError, match=r"engine=vllm needs the optional extra: pip install -e '\.\[vllm\]'"):
        prepare(checked("engine=vllm", f"task={task}", "logger=none"))


def test_a_benchmark_of_random_weights_takes_no_engine() -> None:
    with pytest.raises(ConfigError, match="benchmark=wide times random weights, which engine=auto samples"):
        prepare(checked("engine=hf", "task=benchmark", "benchmark=wide", "logger=none"))


def test_policies(tmp_path: Path) -> None:
    built_in = ["chain", "chain_asides", "chain_long_answer", "chain_one_step", "fresh", "graph", "graph_hints"]
    assert names("policy") == [*built_in, "hf", "hf_lora"]
    assert settings("policy=hf", "policy.name=a/b", "policy.dtype=bfloat16").policy == PretrainedPolicy("a/b", dtype="bfloat16")
    lora = settings("policy=hf_lora", "policy.name=a/b", "policy.lora.r=4", "policy.lora.target_modules=[q_proj]").policy.lora
    assert isinstance(lora, LoraSpec)
    assert (lora.r, list(lora.target_modules)) == (4, ["q_proj"])
    assert isinstance(settings("task=warm_start", "policy=fresh").policy, FreshPolicy)
    assert settings().policy.trust_remote_code is False


def test_files(rows: str) -> None:
    built = settings("data=files", f"data.train.paths={rows}", f"data.evaluation.test.paths=[{rows}]")
    assert isinstance(built.train, FileProblems)
    assert list(built.eval_sets) == ["test"]
    other = settings(
        "data=files",
        f"data.train.paths={rows}",
        f"+data.evaluation.more={{_target_: oar_lightning.data.files.FileProblems, paths: {rows}}}",
        f"data.evaluation.test.paths={rows}",
    )
    assert list(other.eval_sets) == ["test", "more"]


def test_columns_of_the_benchmark_follow_those_of_the_training_data(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text(json.dumps({"question": "1+1?", "why": "#### 2"}) + "\n")
    columns = ["data.train.question_column=question", "data.train.answer_column=null", "data.train.solution_column=why"]
    built = settings("data=files", f"data.train.paths={path}", f"data.evaluation.test.paths={path}", *columns)
    assert [p.answer for p in built.eval_sets["test"]] == ["2"]


def test_the_tracking_store_lies_in_the_current_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert checked().logger.tracking_uri == f"sqlite:///{tmp_path}/mlflow.db"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:5000")
    assert checked().logger.tracking_uri == "http://127.0.0.1:5000"
    assert checked("logger=none").logger is None


def test_a_plug_in_scorer_is_a_function_or_a_class(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "my_plug_in.py").write_text("def digits(model, rollouts, bonus: float = 1.0): ...\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    scorer = "{_target_: my_plug_in.digits, _partial_: true, bonus: 2}"
    cfg = composed("~scorer", f"+scorer={scorer}")
    check_config(cfg)
    check_targets(plain(cfg))
    assert isinstance(build_settings(cfg).method.scorer, FunctionScorer)
    # as the message of the first attempt says
    with pytest.raises(ConfigError, match=r"scorer: my_plug_in\.digits needs .*, or \+scorer\._partial_=true where scorer is"):
        checked("scorer._target_=my_plug_in.digits")
    assert isinstance(settings("scorer._target_=my_plug_in.digits", "+scorer._partial_=true").method.scorer, FunctionScorer)
    with pytest.raises(ConfigError, match=r"unknown key scorer\.bonu; did you mean scorer\.bonus"):
        checked("~scorer", "+scorer={_target_: my_plug_in.digits, _partial_: true, bonu: 2}")


def test_a_gate_of_one_s_own_needs_no_region_in_its_yaml(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Scorers that cover either region take the one that a gate's settings name."""
    (tmp_path / "my_plain_gate.py").write_text(
        "from oar_lightning.credit.gates import Gate\nclass Plain(Gate):\n    def __call__(self, scores, rollouts): ...\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    own = ("~gate", "+gate={_target_: my_plain_gate.Plain}")
    assert settings("scorer=random", *own).method.scorer.covers == "reasoning"
    assert settings("scorer=random", "gate=direct", "gate.region=response").method.scorer.covers == "response"


BAD = [
    (["gate.tau=1.4"], "a normalised score) and must be in [0, 1], got 1.4"),
    (["gate.beta=-1"], "gate.beta"),
    (["gate.mode=bot"], "gate.mode must be one of both, boost_only, suppress_only, off, got 'bot'"),
    (["loss.clip_low=2"], "loss.clip_low"),
    (["loss.reduction=mean"], "loss.reduction"),
    (["rollout.temperature=0"], "set rollout.temperature > 0"),
    (["rollout.top_p=0"], "rollout.top_p"),
    (["loss=gspo", "scorer=oar_g"], "use loss=gspo_token (loss.ratio=sequence_token) or scorer=uniform"),
    (["policy=fresh"], "policy=fresh is a random policy"),
    (["policy.dtype=float64"], "policy.dtype must be one of float32, bfloat16, float16, auto"),
    (["+trainer.accumulate_grad_batches=2"], "use update.microbatches instead"),
    (["optimizer.fused=true", "trainer.precision=bf16-mixed"], "optimizer.fused=null"),
    (["+trainer.acumulate=2"], "unknown key trainer.acumulate"),
    (["scorer=oar_g", "+scorer.taau=1"], "unknown key scorer.taau"),
    (["scorer=oar_g", "scorer.probe.name=answer"], "scorer.probe.name"),
    (["scorer=oar_g", "scorer.num_draws=0"], "scorer.num_draws"),
    (["+foo=1"], "unknown key foo; the keys here are: advantage, "),
    (["+sed=1"], "did you mean seed?"),
    (["+data.trian=1"], "unknown key data.trian; did you mean data.train?"),
    (["+data.chain.steps=1"], "unknown key data.chain.steps"),
    (["+data.train.noise=0.1"], "unknown key data.train.noise"),
    (
        ["data=gsm8k", "+variant=asides"],
        "'noise': 0.25}: no chosen data set reads it (data.name=gsm8k); leave it out, and +variant=... which sets it",
    ),
    (["data=gsm8k", "+data.graph.asides=1"], "data.graph={'asides': 1}: no chosen data set reads it"),
    (["policy=hf"], "policy.name has no value; set it"),
    (["data=files"], "has no value; set it"),
    (["data=files", "data.train.paths=none.jsonl", "data.evaluation.test.paths=x"], "no such file"),
    (["data.chain.noise=2"], "data.chain.noise"),
    (["data.evaluation=null"], "data.evaluation"),
    (["update.group_size=1"], "update.group_size is the number of completions that are compared and must be >= 2, got 1"),
    (["update.group_size=two"], "must be an integer >= 2, got 'two'"),
    (["update.problems=null"], "update.problems must be an integer >= 1, got None"),
    (["advantage.scale=std"], "advantage.scale"),
    (["schedule.name=cosin"], "schedule.name must be one of "),
    (["schedule.warmup_steps=-1"], "schedule.warmup_steps"),
    (["evaluation.samples=0"], "evaluation.samples"),
    (["evaluation.batch_problems=0"], "evaluation.batch_problems must be >= 1, got 0"),
    (["task=warm_start", "supervised.batch_size=0"], "supervised.batch_size"),
    (["reward.terms.accuracy.verifier.timeout_s=0"], "timeout_s must be finite and > 0"),
    (["+reward.weights.acuracy=1"], "reward.weights names ['acuracy']"),
    (["reward.weights.accuracy=much"], "reward.weights.accuracy must be a number, got 'much'"),
    (["reward.weights.accuracy=0"], "reward.weights are 0 for all of ['accuracy', 'format', 'overlong']"),
    (["+experiment=warm_start", "supervised=null"], "supervised=None: supervised is a block of settings"),
    (["task=sync", "sync=5"], "sync=5: sync is a block of settings"),
    (["task=lab", "lab=null"], "lab=None: lab is a block of settings"),
    (["output_root=null"], "output_root must be a text, got None"),
    (["name=[a]"], "name must be a text, got ['a']"),
    (["export_to=[p,q]"], "export_to must be a text or null, got ['p', 'q']"),
    (["data.evaluation.chain=null"], "data.evaluation.chain=None is no source of problems"),
    (
        ["data.train=5"],
        "data.train=5 is no source of problems, which is a block of settings with _target_; choose one by data=",
    ),
    (["~data.prompt"], "data.prompt is missing; leave out ~data.prompt"),
    (["loss._target_=builtins.dict"], "loss._target_=builtins.dict makes a dict, and loss is a LossConfig"),
    (["policy._target_=builtins.dict"], "policy._target_=builtins.dict makes a dict, which has no load()"),
    (["~schedule", "+schedule={_target_: builtins.dict}"], "makes a dict, and schedule is a Schedule; subclass it"),
    (["~reward.terms.accuracy", "~reward.weights.accuracy"], "reward.terms must include accuracy"),
    (["answer.boxed=false", "answer.phrases=[]"], "answer.boxed=false and answer.phrases=[]"),
    (["answer.no_span=none"], "answer.no_span"),
    (["trainer.max_steps=0"], "trainer.max_steps is a number of optimizer steps and must be >= 1, got 0"),
    (["trainer.max_steps=ten"], "trainer.max_steps"),
    (["seed=-1"], "seed must be in [0, 4294967296), got -1"),
    (["seed=true"], "seed must be an integer in [0, 4294967296), got True"),
    (["num_threads=0"], "num_threads must be >= 1, or null for torch's default"),
    (["resume=outputs"], "resume is a switch (a path goes to ckpt_path) and must be true or false, got 'outputs'"),
    (["checkpoint_every_n_steps=-1"], "checkpoint_every_n_steps"),
    (["ckpt_fallback=previous.ckpt"], "ckpt_fallback must be true or false"),
    (
        ["update.token_budget=aut"],
        "update.token_budget is a number of tokens and must be an integer >= 1, auto or null, got 'aut'",
    ),
    (["update.token_budget=0"], "update.token_budget is a number of tokens and must be >= 1, auto or null, got 0"),
    (["rollout.token_budget=0.5"], "and must be an integer >= 1, auto or null, got 0.5"),
    (["rollout.token_budget=true"], "and must be an integer >= 1, auto or null, got True"),
    (["scorer=oar_g", "scorer.token_budget=null"], "and must be an integer >= 1 or auto, got None"),
    (["scorer=oar_p", "scorer.token_budget=-1"], "scorer.token_budget is a number of tokens and must be >= 1 or auto, got -1"),
    (
        ["update.token_budget=auto", "loss.reduction=bnpo"],
        "set update.token_budget to a number or null, or loss",
    ),
    (["optimizer.lr=fast"], "optimizer.lr must be "),
    (["+optimizer.momentum=0.9"], "unknown key optimizer.momentum"),
]


@pytest.mark.parametrize(("overrides", "expected"), BAD, ids=lambda v: " ".join(v) if isinstance(v, list) else "")
def test_bad_configs_name_key_and_remedy(overrides: list[str], expected: str) -> None:
    assert expected in error_of(*overrides)


def error_of(*overrides: str) -> str:
    """The message that ends a run."""
    with pytest.raises((ValueError, HydraException)) as caught:
        settings(*overrides)
    error: BaseException = caught.value  # Hydra wraps what a target raises, and main shows the cause
    error = error.__cause__ if isinstance(error, HydraException) and error.__cause__ else error
    assert "\n" not in str(error)
    return str(error)
