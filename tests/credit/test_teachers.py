"""Copies of a policy that lag behind it, and models of their own."""

from __future__ import annotations

import copy
import shutil
from pathlib import Path

import pytest
import torch
from support.fixtures import tiny_policy
from support.toy import gpt2, tools

from oar_lightning.credit.teachers import GivenTeacher, LaggedPolicy, LaggedWeights, PolicyItself, check_vocabulary
from oar_lightning.policy.pretrained import export_policy

IDS = torch.tensor([[3, 4, 5]])


def lagged(every: int | None) -> LaggedWeights:
    return LaggedWeights(every, "the.key", "another=1")


def test_weights_of_some_steps_ago() -> None:
    """Renewed at 0, 2 and 5; parameters, their gradients and the frozen ones stay what they are."""
    model, teacher = gpt2(dropout=0.0), lagged(2)
    frozen = next(iter(model.parameters())).requires_grad_(False)
    known = {}
    for step in (0, 1, 2, 3, 5):
        known[step] = copy.deepcopy(model)
        teacher.renew(model, step)
        objects = [(p, p.data.data_ptr()) for p in model.parameters()]
        with torch.no_grad():
            own = model(IDS).logits
            with teacher.inside(model):
                assert torch.equal(model(IDS).logits, known[{0: 0, 1: 0, 2: 2, 3: 2, 5: 5}[step]](IDS).logits)
            assert torch.equal(model(IDS).logits, own)
        assert all(p is q and p.data.data_ptr() == at for p, (q, at) in zip(model.parameters(), objects, strict=True))
        with torch.no_grad():
            for p in model.parameters():
                if p is not frozen:
                    p.add_(0.01 * torch.randn_like(p))
    assert len(teacher.weights) == len(list(model.parameters())) - 1


def test_an_error_inside_gives_the_weights_back() -> None:
    model, teacher = gpt2(), lagged(1)
    teacher.renew(model, 0)
    with torch.no_grad():
        model.transformer.wte.weight.mul_(2)
    expected = model.transformer.wte.weight.clone()
    with pytest.raises(IndexError), teacher.inside(model):
        model(torch.tensor([[10**6]]))
    assert torch.equal(model.transformer.wte.weight, expected)


def test_a_saved_copy_is_not_renewed_early() -> None:
    model, teacher, resumed = gpt2(), lagged(10), lagged(10)
    teacher.renew(model, 7)
    resumed.load_state_dict(copy.deepcopy(teacher.state_dict()))
    other = gpt2(seed=2)
    for step, renewed in ((16, False), (17, True)):
        resumed.renew(other, step)
        assert torch.equal(resumed.weights["transformer.wte.weight"], other.transformer.wte.weight) == renewed


def test_a_copy_of_later_steps_is_renewed() -> None:
    """A run may go on from a checkpoint whose rollouts had higher numbers."""
    teacher, other = lagged(10), gpt2(seed=2)
    teacher.renew(gpt2(), 40)
    teacher.renew(other, 3)
    assert torch.equal(teacher.weights["transformer.wte.weight"], other.transformer.wte.weight)
    assert teacher.step == 3


def test_sharded_weights_are_refused() -> None:
    model = gpt2()
    next(iter(model.parameters())).ds_shape = (1,)
    with pytest.raises(ValueError, match=r"the\.key copies .* sharded over the ranks; set another=1, or"):
        lagged(3).renew(model, 0)


def test_a_copy_for_ever_is_kept_until_it_is_forgotten() -> None:
    model, other, kept = gpt2(), gpt2(seed=2), lagged(None)
    assert kept.state_dict() == {}
    kept.renew(model, 3)
    kept.renew(other, 10**6)
    assert torch.equal(kept.weights["transformer.wte.weight"], model.transformer.wte.weight)
    kept.load_state_dict({})
    assert not kept.weights
    kept.renew(other, 4)
    assert torch.equal(kept.weights["transformer.wte.weight"], other.transformer.wte.weight)
    kept.forget()
    assert (kept.weights, kept.step) == ({}, 0)


def test_the_copy_of_a_lagged_policy_reads() -> None:
    model, teacher = gpt2(dropout=0.0), LaggedPolicy(2)
    teacher.prepare(model, 4)
    known = copy.deepcopy(model)
    with torch.no_grad():
        model.transformer.wte.weight.mul_(2)
        for step, reader in ((5, known), (6, model)):
            teacher.prepare(model, step)
            with teacher.reading(model) as reading:
                assert torch.equal(reading(IDS).logits, reader(IDS).logits)
    assert teacher.state_dict()["step"] == 6
    with pytest.raises(ValueError, match=r"scorer/teacher=lagged: the checkpoint is of another teacher \(mine\)"):
        teacher.load_state_dict({"name": "mine", "digest": "0"})
    with pytest.raises(ValueError, match="PolicyItself keeps no state"):
        PolicyItself().load_state_dict(teacher.state_dict())


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Another model than the tiny policy of the tests, with its tokenizer."""
    policy = tiny_policy(seed=3)
    export_policy(policy.model, policy.tokenizer, folder := tmp_path_factory.mktemp("teacher"))
    return folder


def given(folder: Path) -> GivenTeacher:
    teacher = GivenTeacher(str(folder))
    teacher.use(tools(tokenizer=tiny_policy().tokenizer))
    return teacher


def test_a_given_model_reads_and_does_not_learn(folder: Path) -> None:
    """It is loaded once, and none of its weights is in its state."""
    teacher, policy = given(folder), tiny_policy()
    loaded = teacher.model
    teacher.use(tools(tokenizer=policy.tokenizer))
    assert teacher.model is loaded
    assert not any(p.requires_grad for p in loaded.parameters())
    assert not loaded.training
    teacher.prepare(policy.model, 7)
    with torch.no_grad(), teacher.reading(policy.model) as reading:
        expected = tiny_policy(seed=3).model(IDS).logits
        assert torch.equal(reading(IDS).logits, expected)
        assert not torch.equal(policy.model(IDS).logits, expected)
    assert all(isinstance(value, str) for value in teacher.state_dict().values())


def test_a_checkpoint_knows_its_teacher(folder: Path, tmp_path: Path) -> None:
    """The same weights elsewhere are the same teacher; other weights in its folder are refused."""
    state = given(folder).state_dict()
    given(folder).load_state_dict(state)
    moved = shutil.copytree(folder, tmp_path / "moved")
    given(moved).load_state_dict(state)
    other = tiny_policy(seed=4)
    export_policy(other.model, other.tokenizer, moved)
    given(moved).load_state_dict(state)  # another name: the settings differ, which a resumed run tells
    with pytest.raises(ValueError, match=r"scorer\.teacher\.name=.*its weights are not those .* resume_changed=true"):
        given(moved).load_state_dict(state | {"name": str(moved)})


def test_a_teacher_without_the_policys_tokens_is_refused(folder: Path) -> None:
    own = tiny_policy().tokenizer
    check_vocabulary({"a": 0, "b": 1}, {"a": 0, "b": 1, "more": 2}, "x")
    with pytest.raises(ValueError, match=r"teacher\.name=x: 2 of the policy's 2 .* first is 'b', 0 .* and 1 in its own"):
        check_vocabulary({"a": 1, "b": 0}, {"b": 1}, "x")
    with pytest.raises(ValueError, match=r"scorer\.teacher\.name=graph: \d+ of the policy's .* with the same tokenizer"):
        GivenTeacher("graph").use(tools(tokenizer=own))
    with pytest.raises(ValueError, match=r"scorer\.teacher\.name=/no/such: no such folder, and no hub id"):
        GivenTeacher("/no/such").use(tools(tokenizer=own))


def test_another_run_of_the_process_begins_without_a_copy() -> None:
    teacher = LaggedPolicy(10)
    teacher.prepare(gpt2(), 0)
    assert teacher.state_dict()
    teacher.use(tools())
    assert not teacher.state_dict()


@pytest.mark.parametrize("begun", [False, True])
def test_who_looks_on_renews_no_copy(begun: bool) -> None:
    """A heat-map before the first step of a fork would shift when copies are made."""
    model, teacher = gpt2(), LaggedPolicy(2)
    if begun:
        teacher.prepare(model, 0)
    before = copy.deepcopy(teacher.state_dict())
    with teacher.looked_at():
        teacher.prepare(model, 7)
        assert teacher.state_dict()["step"] == 7
    assert teacher.state_dict().keys() == before.keys()
    assert teacher.state_dict().get("step") == before.get("step")
    teacher.prepare(model, 1)
    assert teacher.copy.step == (0 if begun else 1)
