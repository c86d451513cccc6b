"""Mistakes of a new user. Each ends the command with exit code 1 and one message with key, value and remedy; nothing is left.

The expected words are written by hand from what the user did, not taken from the code.
"""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

import pytest
from support.commands import Done, run, run_light

FILES = "data=files data.train.paths=rows.jsonl data.evaluation.test.paths=rows.jsonl"
MINE = "~scorer '+scorer={{_target_: mistaken.{0}, _partial_: true}}'"

EARLY = {
    # keys
    "gate.tua=0.5": "gate.tua=0.5; did you mean gate.tau=0.5?",
    "sed=1": "sed=1; did you mean seed=1?",
    "+sed=1": "unknown key sed; did you mean seed?",
    "tau=0.5": "did you mean gate.tau=0.5?",
    "lr=1e-4": "did you mean optimizer.lr=1e-4?",
    "experiment=oar_g gate.tua=1": "gate.tua=1; did you mean gate.tau=1?",
    "++rollout=0.3": "rollout=0.3: | block of settings",
    "gate=off": "gate=off: | the options of gate are: bilevel",
    "+data.trian=1": "unknown key data.trian; did you mean data.train?",
    "+gate.tau=0.5": "leave out the plus: gate.tau=0.5",
    "gate.tau": "gate.tau cannot be read | write key=value",
    "gate.tau=[0.5": "gate.tau=[0.5 cannot be read | quote",
    "gate.tau=0.1,0.2": "gate.tau=0.1,0.2 | a grid, which takes -m",
    "audit.files=[x]": "audit is read by task=audit only; set the task",
    "task=lab lab.sampels=2": "unknown key lab.sampels=2; did you mean lab.samples=2?",
    "task=lab lab.estimators.mine.scorer=oar_p": "is chosen there by +scorer@lab.estimators.mine.scorer=oar_p",
    "task.foo=1": "task takes the name of an option: audit, benchmark",
    "reward.terms.mine._target_=a.B": "unknown key | a plus adds one: +reward.terms.mine._target_=a.B",
    "+experiment=oar_g scorer.probe=last": "scorer.probe must be a group of settings (name, warmup, warmup_steps), got 'last'",
    "scorer.noise_std=1": "scorer.noise_std=1; scorer=uniform has no such setting; scorer=oar_g",
    # options
    "scorer=oar_x": "scorer=oar_x | did you mean scorer=oar_g?",
    "+experiment=oar_h": "experiment=oar_h | did you mean experiment=oar_g?",
    "experiment=grop": "experiment=grop | did you mean experiment=grpo?",
    "loss=ppo": "loss=ppo | the options of loss are: bnpo, cispo",
    "task=eval": "task=eval | did you mean task=evaluate?",
    "data/prompt=chatt": "data/prompt=chatt | did you mean data/prompt=chat?",
    "task=benchmark benchmark=huge": "benchmark=huge | the options of benchmark are: authors",
    # multirun and sweeps
    "-m gate.tua=0.1,0.2": "gate.tua=0.1,0.2; did you mean gate.tau=0.1,0.2?",
    "-m gate.tau=0.1,0.2 seed=0,-1": "seed must be in [0, 4294967296), got -1",
    "-m gate.tau=0.1,5": "gate.tau is a quantile | and must be in [0, 1], got 5",
    "-m gate.tau=interval(0.1,0.5)": "gate.tau=interval(0.1,0.5): a grid takes values | choice(...) | hydra/sweeper=oar_optuna",
    "gate.tau=0.1,5 -m seed=0,1": "gate.tau is a quantile | and must be in [0, 1], got 5",  # overrides on both sides of a flag
    "-m scorer=oar_g,oar_x": "scorer=oar_x | did you mean scorer=oar_g?",
    "-m +sweeps=tau_bata": "sweeps=tau_bata | did you mean sweeps=tau_beta?",
    "-m +sweeps=smoke gate.tua=1": "gate.tua=1; did you mean gate.tau=1?",
    "-m seed=0,1 export_to=policy": "export_to=policy is the folder of several jobs | leave it out",
    "+sweeps=smoke": "sweeps=smoke | needs -m | python -m oar_lightning -m +sweeps=smoke",
    # values
    "seed=-1": "seed must be in [0, 4294967296), got -1",
    "seed=x": "seed must be an integer in [0, 4294967296), got 'x'",
    "num_threads=0": "num_threads must be >= 1, or null | got 0",
    "trainer.max_steps=0": "trainer.max_steps | >= 1, got 0",
    "checkpoint_every_n_steps=-1": "checkpoint_every_n_steps must be >= 0, got -1",
    "resume=outputs": "a path goes to ckpt_path | resume is a switch | must be true or false, got 'outputs'",
    "ckpt_fallback=x": "ckpt_fallback must be true or false, got 'x'",
    "name=": "name must be a text | got '' | e.g. name=",
    "policy=hf": "policy.name has no value; set it, e.g. policy.name=",
    "data=files": "data.evaluation.test.paths has no value; set it, e.g. data.evaluation.test.paths=",
    # folders
    "hydra.run.dir=file.txt/x": "hydra.run.dir=file.txt/x cannot be written (Not a directory); choose another folder",
    "'output_root=\"~/runs\"'": "output_root=~/runs would be a folder that is called ~; write output_root=$HOME/runs",
    "logger=csv +logger.tags.note=x": "logger.tags is a setting of MLflow's | set logger=mlflow, or leave it out",
    "output_root=file.txt": "file.txt/train/seed0/ | cannot be written | choose another folder by output_root",
}
"""A command -> parts of its message. It is told before anything slow is imported."""

RANGES = {
    "alarms.mass=[2,1]": "alarms.mass must be [low, high] with 0 <= low < high, or null for never, got [2, 1]",
    "alarms.window=0": "alarms.window | must be >= 1, got 0",
    "checkpoints.best=-1": "checkpoints.best | must be >= 0, got -1",
    "rollout.token_budget=0": "rollout.token_budget | must be >= 1, auto or null, got 0",
    "update.minibatches=1000": "update.minibatches=1000 | update.problems=32 times update.group_size=8 | lower it",
    "gate=direct gate.low=3 gate.high=2": "gate.low and gate.high bound a score | got low=3, high=2",
    "scorer=oar_g scorer.num_draws=0": "scorer.num_draws must be >= 1, got 0",
    "scorer=inverted scorer.inner.noise_std=-1": "scorer.inner.noise_std must be finite and >= 0, got -1",
    "scorer=oar_p scorer.fill_token_id=3 scorer.fill=model_sample": "scorer.fill_token_id=3 is only for scorer.fill=pad",
    "scorer=monte_carlo scorer/segments=fixed_length scorer.segments.length=0": "scorer.segments.length | must be >= 1, got 0",
    "data.max_prompt_tokens=0": "data.max_prompt_tokens must be >= 1, or null for no limit, got 0",
    "+trainer.foo=1": "unknown key trainer.foo; | the keys of trainer are: ",
    "+trainer.max_epochs=3": "trainer.max_epochs=3 is not read | trainer.max_steps",
    "+trainer.val_check_interval=10": "trainer.val_check_interval=10 is not read | evaluation.every_n_steps",
    "task=audit audit.files=[recorded.jsonl] resume=true": "resume=True | task=audit reads no checkpoint; leave them out",
    "task=evaluate trainer.fast_dev_run=true": "trainer.fast_dev_run=True | evaluation.problems",
    "~gate": "gate is missing | leave out ~gate",
    "task=plan ~optimizer": "optimizer is missing | leave out ~optimizer",
    "trainer.precision=17": "trainer.precision must be one of 32-true, bf16-mixed | or null, got 17",
    "update.group_size=eight": "update.group_size is the number of completions | must be an integer >= 2, got 'eight'",
    "update.group_size=1": "update.group_size is the number of completions | must be >= 2, got 1",
    "update.problems=0": "update.problems must be >= 1, got 0",
    "update.minibatches=0": "update.minibatches | got 0",
    "update.inner_epochs=0": "update.inner_epochs | got 0",
    "rollout.top_p=2": "rollout.top_p | got 2",
    "rollout.top_p=0": "rollout.top_p | got 0",
    "rollout.max_new_tokens=0": "rollout.max_new_tokens must be >= 1, got 0",
    "gate.tau=-1": "gate.tau is a quantile | and must be in [0, 1], got -1",
    "gate.beta=-1": "gate.beta | must be finite and >= 0, got -1",
    "gate.mode=bot": "gate.mode must be one of both, boost_only, suppress_only, off, got 'bot'",
    "gate.tau=${gat.beta}": "gat.beta | gate.tau",
    "experiment=oar_g gate._target_=oar_lightning.credit.gates.ClipGate": "does not take gate.tau, gate.beta | another | "
    "write the whole object, '~gate' '+gate={_target_: oar_lightning.credit.gates.ClipGate}' (its keys are ",
    "+gate.tua=1": "unknown key gate.tua; did you mean gate.tau?",
    "loss.clip_low=-1": "loss.clip_low | got -1",
    "advantage.scale=std": "advantage.scale must be one of group, batch, none, got 'std'",
    "optimizer.lr=-1": "optimizer.lr must be finite and >= 0, got -1",
    "optimizer.lr=fast": "optimizer.lr must be | got 'fast'",
    "optimizer.betas=[2,.9]": "optimizer.betas must be two numbers in [0, 1), e.g. [0.9,0.999], got [2, 0.9]",
    "optimizer.weight_decay=-1": "optimizer.weight_decay must be finite and >= 0, got -1",
    "+optimizer.momentum=0.9": "unknown key optimizer.momentum; | keys of optimizer are: ",
    "schedule.name=cosin": "schedule.name must be one of linear, cosine | got 'cosin'",
    "schedule.name=reduce_lr_on_plateau": "schedule.name must be one of linear, | got 'reduce_lr_on_plateau'",
    "schedule.name=greedy": "schedule.name must be one of linear, | got 'greedy'",
    "schedule.warmup_steps=-1": "schedule.warmup_steps must be >= 0, got -1",
    "evaluation.problems=0": "evaluation.problems must be >= 1 or null, got 0",
    "evaluation.samples=x": "evaluation.samples must be an integer >= 1, got 'x'",
    "divergence.collapse=2": "divergence.collapse | must be in (0, 1], or null for never, got 2",
    "divergence.max_silent_steps=0": "divergence.max_silent_steps | must be >= 1, or null for never, got 0",
    "answer.phrases=Answer": "answer.phrases is a list, e.g. answer.phrases=['Answer']",
    "reward.weights.accuracy=much": "reward.weights must be",
    "trainer.devices=-3": "trainer.devices must be >= 1, a list, auto or null, got -3",
    "trainer.devices=two": "trainer.devices must be an integer >= 1, a list, auto or null, got 'two'",
    "trainer.num_nodes=0": "trainer.num_nodes must be >= 1, got 0",
    "trainer.precision=nonsense": "trainer.precision must be one of | bf16-mixed | got 'nonsense'",
    "trainer.gradient_clip_val=-1": "trainer.gradient_clip_val must be finite and >= 0, or null for none, got -1",
    "logger.tracking_uri=": "logger.tracking_uri must be sqlite:///<file> | got ''",
    "logger.tracking_uri=mlruns": "logger.tracking_uri must be sqlite:///<file> | got 'mlruns'",
    "data.chain.noise=2": "data.chain.noise is a probability and must be in [0, 1), got 2",
    "task=score score.files=[recorded.jsonl] score.output=x.txt": "score.output must end in .jsonl or .jsonl.gz, got x.txt",
    "task=plan plan.card_gb=h1000": "plan.card_gb | must be a finite number > 0 or one of t4, | got 'h1000'",
    "task=warm_start supervised.batch_size=0": "supervised.batch_size | got 0",
    f"{FILES} +data.evaluation.test.limit=0": "data.evaluation.test.limit must be >= 1, or null for all, got 0",
}
"""The same, for values that a setting does not take: each must be told by the source alone."""

LATER = {
    # what only the policy, or several objects together, can tell
    "rollout.temperature=0": "rollout.temperature=0 | set rollout.temperature > 0",
    "rollout.max_new_tokens=100000": "rollout.max_new_tokens=100000 | the 2048 positions | to at most",
    "task=evaluate rollout.max_new_tokens=100000": "rollout.max_new_tokens=100000 | set rollout.max_new_tokens to at most",
    "loss=gspo scorer=oar_g": "loss.ratio=sequence | use loss=gspo_token",
    "+reward.weights.acc=1": "reward.weights names ['acc']",
    # trainer
    "trainer=gpu": "trainer.accelerator=gpu | no GPU here; use trainer=cpu",
    "trainer=ddp": "trainer.accelerator=gpu | no GPU here; use trainer=cpu | trainer.accelerator=cpu trainer.devices=2",
    "trainer=deepspeed_zero2": "trainer.accelerator=gpu | no GPU here; use trainer=cpu",
    "trainer.accelerator=bogus": "trainer.accelerator=bogus is refused | Available names are: | cpu",
    "engine=vllm": "engine=vllm needs the optional extra: pip install",
    # policy
    "policy=hf policy.name=folder": "policy.name=folder holds no config.json; give",
    "policy=hf policy.name=untokenized": "policy.name=untokenized holds no tokenizer; save",
    "policy=hf policy.name=file.txt": "policy.name=file.txt is a file; give the folder",
    "policy=hf policy.name=./nothing": "policy.name=./nothing: no such folder | correct the path",
    "policy=hf policy.name=no-such/model": "policy.name=no-such/model | cannot be found on the hub | correct the name",
    "policy=fresh": "policy=fresh is a random policy | train it first",
    "data/prompt=chat": "data/prompt=chat needs a tokenizer with a chat template | use data/prompt=plain",
    # checkpoints and outputs
    "ckpt_path=file.txt": "ckpt_path= | file.txt: not a readable checkpoint | give a run's folder",
    "ckpt_path=none.ckpt": "ckpt_path=none.ckpt: no such file; give a run's folder",
    "resume=true": "resume=true: no checkpoint under | start without resume",
    "export_to=file.txt": "export_to=file.txt cannot be written | choose another path",
    "export_to=file.txt/policy": "export_to=file.txt/policy cannot be written | choose another path",
    "logger.tracking_uri=nonsense://x": "logger.tracking_uri=nonsense://x cannot be used | correct the address",
    "logger.tracking_uri=sqlite:///folder": "logger.tracking_uri= | is a folder; give a file",
    "logger.tracking_uri=http://127.0.0.1:9": "logger.tracking_uri=http://127.0.0.1:9 cannot be used | start the server",
    # data
    FILES.replace("train.paths=rows", "train.paths=none"): "data.train.paths=none.jsonl: no such file; give JSONL files",
    FILES.replace("test.paths=rows", "test.paths=none"): "data.evaluation.test.paths=none.jsonl: no such file; give JSONL",
    FILES.replace("train.paths=rows", "train.paths=wrong"): "data.train.question_column=problem: wrong.jsonl:1 | set it to one",
    FILES.replace("train.paths=rows", "train.paths=broken"): "data.train.paths: broken.jsonl:1 is not JSON | one JSON object",
    FILES.replace("train.paths=rows", "train.paths=empty"): "data.train.paths=empty.jsonl: no usable row",
    f"{FILES} scorer=oracle": "data.train: problem rows.jsonl:1: | reads problems of data=chain | use another scorer",
    "data.evaluation=null": "data.evaluation names no evaluation set",
    "data=math500": "data=math500 is for evaluation only | data/train=math",
    # scorers of one's own
    MINE.format("wrong_shape"): "scorer._target_=mistaken.wrong_shape | returned shape (3,); return [B S] =",
    MINE.format("gradient"): "scorer._target_=mistaken.gradient | returned a tensor with gradient; return scores.detach()",
    MINE.format("raising"): "scorer._target_=mistaken.raising | raised KeyError: 'x'; correct it",
    MINE.format("nothing"): "scorer._target_=mistaken.nothing | returned None; return a torch tensor",
    MINE.format("array"): "scorer._target_=mistaken.array | returned a numpy.ndarray; return a torch tensor",
    MINE.format("absent"): "scorer._target_=mistaken.absent | has no attribute 'absent'",
    "~scorer '+scorer={_target_: no_module.f}'": "scorer._target_=no_module.f: no such module; | PYTHONPATH",
    # other tasks
    "task=score": "score.files is empty: name the JSONL files",
    "task=score score.files=[none.jsonl]": "score.files | none.jsonl",
    "task=score score.files=[recorded.jsonl] resume=true": "task=score does not resume: leave out resume",
    "task=lab resume=true": "task=lab goes on by itself from what lab.cache keeps: leave out resume",
    "task=lab advantage.scale=batch": "advantage.scale=batch divides by | task=lab | leave out adv",
    "task=lab lab.baseline=grpo": "lab.baseline=grpo is none of the estimators",
    "task=lab lab.files=[none.jsonl]": "lab.files=none.jsonl: no such file; give JSONL files",
    "task=evaluate ckpt_path=file.txt": "ckpt_path=file.txt: task=evaluate takes a policy, policy=hf policy.name=",
    "task=evaluate resume=true": "resume=true | start without resume",
    "task=evaluate data.evaluation=null": "data.evaluation | names no evaluation set; add one",
    "task=export": "task=export needs a checkpoint: give ckpt_path=",
    "task=export ckpt_path=none": "ckpt_path=none: no such file; give a run's folder",
    "task=plan trainer.devices=3": "update.problems=32 | 3",
    "task=plan scorer=oar_g gate=signed": "gate=signed | ",
    "task=plan rollout.max_new_tokens=3000": "rollout.max_new_tokens=3000 | lower it",
    "task=plan policy=fresh": "policy=fresh has none; pass policy=hf",
    "task=report": "task=report needs one of sweep=<name>, report.runs",
    "task=report sweep=x logger=none": "task=report reads MLflow, and logger=none has no store; leave it out",
    "task=report sweep=x": "logger.tracking_uri= | no such database; run from the folder",
    "task=sync sync.folder=none": "sync.folder=none: no such folder; give a run's folder",
    "task=audit": "audit.files is empty; name JSONL files",
    "task=audit audit.files=[none.jsonl]": "audit.files=none.jsonl: no such file; give JSONL files",
    "task=audit audit.files=[recorded.jsonl] audit.output=folder": "audit.output=folder is a folder; give a file",
    "task=decontaminate": "task=decontaminate | data=chain have no end; choose a finite set",
    "task=benchmark benchmark=wide engine=hf": "benchmark=wide | leave out engine",
}
"""A command -> parts of its message. It is told after imports, before any evaluation."""

PLUG_IN = """
import torch

def wrong_shape(model, rollouts):
    return torch.zeros(3)

def gradient(model, rollouts):
    return torch.zeros(rollouts.token_ids.shape, requires_grad=True)

def raising(model, rollouts):
    raise KeyError("x")

def nothing(model, rollouts):
    return None

def array(model, rollouts):
    return torch.zeros(rollouts.token_ids.shape).numpy()
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with what the commands name."""
    row = {"problem": "1+1?", "answer": "2", "solution": "\\boxed{2}"}
    texts = {
        "file.txt": "hello\n",
        "rows.jsonl": json.dumps(row),
        "wrong.jsonl": json.dumps({"q": "1+1?", "a": "2"}),
        "broken.jsonl": "{nope",
        "empty.jsonl": "",
        "recorded.jsonl": json.dumps({**row, "completion": "so \\boxed{2}"}),
        "mistaken.py": PLUG_IN,
        "untokenized/config.json": "{}",
        "folder/notes.txt": "",
    }
    for name, text in texts.items():
        path = tmp_path / "here" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return tmp_path / "here"


def check(done: Done, parts: str) -> None:
    assert done.code == 1, done.shown
    assert "Traceback" not in done.shown
    told = [line for line in done.shown.splitlines() if "][WARNING] - " not in line]
    assert len(told) == 1, done.shown
    for part in parts.split(" | "):
        assert part in told[0]


def one_in(count: int, cases: dict[str, str]) -> list[Any]:
    """Every `count`-th case runs by default, the others with -m slow: each takes half a CPU second, or a whole one."""
    return [
        pytest.param(command, parts, id=command, marks=[pytest.mark.slow] if number % count else [])
        for number, (command, parts) in enumerate(cases.items())
    ]


@pytest.mark.parametrize(("command", "parts"), [*one_in(2, EARLY), *one_in(6, RANGES)])
def test_a_mistake_that_is_told_before_anything_slow_is_imported(folder: Path, command: str, parts: str) -> None:
    before = sorted(folder.rglob("*"))
    done = run_light(folder, *shlex.split(command))
    check(done, parts)
    assert done.imported == ()
    assert sorted(folder.rglob("*")) == before, "nothing is written"


@pytest.mark.parametrize(("command", "parts"), one_in(4, LATER))
def test_a_mistake_that_is_told_before_anything_long(folder: Path, command: str, parts: str) -> None:
    before = sorted(folder.rglob("*"))
    variables = {"PYTHONPATH": str(folder), "PYTHONDONTWRITEBYTECODE": "1", "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "0"}
    check(run(folder, *shlex.split(command), timeout=60, **variables), parts)
    assert sorted(folder.rglob("*")) == before, "nothing is written"
