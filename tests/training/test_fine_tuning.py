"""LoRA and full fine-tuning, in every precision, with and without gradient checkpointing."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lightning as L
import pytest
import torch
from support.fixtures import fit, make_module, tiny_policy, weights
from torch import Tensor
from transformers import AutoModelForCausalLM

from oar_lightning.common.ranks import rank_correlation
from oar_lightning.credit.gates import SignedGate
from oar_lightning.credit.scorers import Entropy, IStar, OarG, OarP, OarPApproximate, Prime, ProbeSchedule, Scorer
from oar_lightning.credit.scorers.implicit import ImplicitRewards
from oar_lightning.credit.segments import FixedLength
from oar_lightning.objective.loss import LossConfig
from oar_lightning.policy.pretrained import ADAPTER, LoraSpec, Policy, PretrainedPolicy, export_policy
from oar_lightning.training.callbacks import LastCheckpoint, RandomState
from oar_lightning.training.slots import UpdatePlan
from oar_lightning.types import Rollouts

SCORERS = {"oar_g": OarG, "oar_p": OarP, "oar_p_approximate": OarPApproximate, "entropy": Entropy}
LORA = LoraSpec(r=4, alpha=8)
UPDATE = UpdatePlan(problems=2, group_size=4, microbatches=2)


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A policy as a folder, with weights large enough that it prefers some tokens to others."""
    policy, folder = tiny_policy(), tmp_path_factory.mktemp("base")
    with torch.no_grad():
        for p in policy.model.parameters():
            p.mul_(1 if p.ndim == 1 else 4)
    export_policy(policy.model, policy.tokenizer, folder)
    return str(folder)


def adapted(policy: Policy, std: float = 0.05) -> Policy:
    """A LoRA policy whose adapters do something."""
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for name, p in policy.model.named_parameters():
            if "lora_" in name:
                p.copy_(std * torch.randn(p.shape, generator=generator))
    return policy


class AllScorers(Scorer):
    """Runs every scorer in the place of one, and holds each to leaving the policy as it was."""

    def __init__(self) -> None:
        super().__init__()
        self.scores: dict[str, Tensor] = {}
        self.rollouts: Rollouts | None = None

    def __call__(self, model: Any, rollouts: Rollouts) -> Tensor:
        self.rollouts = rollouts
        marks = [torch.full_like(p, 7.0) if p.requires_grad else None for p in model.parameters()]
        wanted = [p.requires_grad for p in model.parameters()]
        for p, mark in zip(model.parameters(), marks, strict=True):
            p.grad = mark
        modes = [module.training for module in model.modules()]
        for name, scorer in SCORERS.items():
            self.scores[name] = scorer()(model, rollouts)
            assert self.scores[name].isfinite().all(), name
            assert not self.scores[name].requires_grad, name
            assert self.scores[name][rollouts.reasoning_mask].gt(0).float().mean() > 0.9, name
            assert all(p.grad is mark for p, mark in zip(model.parameters(), marks, strict=True)), name
            assert all(mark is None or bool(mark.eq(7.0).all()) for mark in marks), name
            assert [p.requires_grad for p in model.parameters()] == wanted, name
            assert [module.training for module in model.modules()] == modes, name
        for p in model.parameters():
            p.grad = None
        return self.scores["oar_g"]


class Watch(L.Callback):
    """The gradients of the first step, and how often the first layer ran in training mode."""

    def __init__(self) -> None:
        self.gradients: dict[str, Tensor] = {}
        self.passes = 0

    def on_train_start(self, trainer: L.Trainer, module: Any) -> None:
        layer = next(m for name, m in module.model.named_modules() if name.endswith("layers.0.mlp"))
        layer.register_forward_pre_hook(self._count)

    def _count(self, layer: torch.nn.Module, *_: Any) -> None:
        self.passes += layer.training

    def on_before_optimizer_step(self, trainer: L.Trainer, module: Any, optimizer: Any) -> None:
        if trainer.global_step == 0:
            self.gradients = {n: p.grad.clone() for n, p in module.model.named_parameters() if p.grad is not None}


def one_run(base: str, lora: LoraSpec | None, checkpointing: bool, precision: str, **policy: Any) -> dict[str, Any]:
    """Two optimizer steps with a KL to the reference."""
    spec = PretrainedPolicy(base, lora=lora, gradient_checkpointing=checkpointing, **policy)
    reference = None if lora else PretrainedPolicy(base).load().model.requires_grad_(False)
    scorer, watch = AllScorers(), Watch()
    torch.manual_seed(0)  # adapters begin with random numbers
    module = make_module(spec.load(), scorer=scorer, update=UPDATE, loss=LossConfig(kl_coef=0.1), reference=reference, lr=1e-2)
    first: dict[str, Tensor] = {}

    class Before(L.Callback):
        def on_train_start(self, trainer: L.Trainer, module: Any) -> None:  # a half precision has rounded the weights by now
            first.update(weights(module))

    rows = fit(module, 2, [watch, Before()], precision=precision).rows
    after = weights(module)
    return {
        "rows": rows,
        "watch": watch,
        "scorer": scorer,
        "changed": {name for name in after if not torch.equal(after[name], first[name])},
        "trained": {name for name, p in module.model.named_parameters() if p.requires_grad},
        "dtypes": {name: p.dtype for name, p in module.model.named_parameters()},
        "buffers": {b.dtype for m in (module.model, module.collector.reference) if m for b in m.buffers()},
    }


PRECISIONS = ["32-true", "bf16-mixed", "bf16-true"]


COMBINATIONS = [
    ("32-true", LORA),
    ("bf16-true", None),
    *(
        pytest.param(*rest, marks=pytest.mark.slow)
        for rest in (("32-true", None), ("bf16-mixed", None), ("bf16-mixed", LORA), ("bf16-true", LORA))
    ),
]


@pytest.mark.parametrize(("precision", "lora"), COMBINATIONS)
def test_every_combination_trains_what_it_should_and_every_scorer_works_in_it(
    base: str, precision: str, lora: LoraSpec | None
) -> None:
    plain, checkpointed = (one_run(base, lora, checkpointing, precision) for checkpointing in (False, True))
    for run in (plain, checkpointed):
        assert set(run["watch"].gradients) == run["trained"]
        assert all(("lora_" in name) == (lora is not None) for name in run["trained"])
        # the first matrices of adapters get a gradient once the second ones, zero at first, have moved
        assert run["changed"] == {name for name in run["trained"] if "lora_A" not in name}
        assert run["rows"][1]["kl"] == pytest.approx(0, abs=1e-6 if precision == "32-true" else 1e-3)
        assert set(run["dtypes"].values()) == {torch.bfloat16 if precision == "bf16-true" else torch.float32}
        assert run["buffers"] == {torch.float32}, "rotary frequencies of the policy and of the reference"
    assert checkpointed["watch"].passes == 2 * plain["watch"].passes > 0, "activations are computed again in the backward pass"
    losses = [[run["rows"][step]["loss"] for step in (1, 2)] for run in (plain, checkpointed)]
    assert losses[1] == pytest.approx(losses[0], rel=1e-6, abs=1e-7)
    for name, gradient in plain["watch"].gradients.items():
        scale = float(gradient.abs().max())
        assert torch.allclose(checkpointed["watch"].gradients[name], gradient, rtol=1e-6, atol=1e-6 * scale), name
    for name in SCORERS:
        assert torch.equal(plain["scorer"].scores[name], checkpointed["scorer"].scores[name]), name


@pytest.mark.parametrize("precision", PRECISIONS[:2])
def test_adapters_stay_float32_on_a_bfloat16_base(base: str, precision: str) -> None:
    run = one_run(base, LORA, True, precision, dtype="bfloat16")
    kinds = {("lora_" in name): set() for name in run["dtypes"]}
    for name, dtype in run["dtypes"].items():
        kinds["lora_" in name].add(dtype)
    assert kinds == {True: {torch.float32}, False: {torch.bfloat16}}
    assert run["changed"] == {name for name in run["trained"] if "lora_B" in name}


@pytest.fixture(scope="module")
def collected(base: str) -> Rollouts:
    """Completions of the base policy."""
    scorer = AllScorers()
    fit(make_module(PretrainedPolicy(base).load(), scorer=scorer, update=UPDATE), 1)
    assert scorer.rollouts is not None
    return scorer.rollouts


def all_scores(model: Any, rollouts: Rollouts) -> dict[str, Tensor]:
    return {name: scorer()(model, rollouts) for name, scorer in SCORERS.items()}


def test_fresh_adapters_score_as_the_policy_without_them(base: str, collected: Rollouts) -> None:
    """In float64: with little rounding, and both through their own modules."""
    plain = PretrainedPolicy(base).load().model.double()
    fresh = PretrainedPolicy(base, lora=LORA, gradient_checkpointing=True).load().model.double().train()
    rollouts = dataclasses.replace(collected, prediction_states=None)
    expected, actual = all_scores(plain, rollouts), all_scores(fresh, rollouts)
    trained = all_scores(adapted(Policy(fresh, None)).model, rollouts)
    for name in SCORERS:
        assert torch.allclose(actual[name], expected[name], rtol=1e-6, atol=1e-12), name
        assert not torch.allclose(trained[name], expected[name], rtol=1e-4), name


AGREEMENT = {"oar_g": 0.4, "oar_g_joint": 0.95, "oar_p": 0.95, "oar_p_approximate": 0.95, "entropy": 0.98}
"""Mean rank correlation per completion; measured: 0.62 to 0.64, 0.99, 0.98 to 0.99, 0.98 to 0.99, 0.99. OAR-G differentiates a
KL of outcomes so close together that bfloat16's rounding is part of its noise: as little do two draws agree in float32."""


@pytest.mark.parametrize("half", ["mixed", "true", "base"])
def test_bfloat16_ranks_tokens_much_as_float32_does(base: str, half: str, collected: Rollouts) -> None:
    rollouts = dataclasses.replace(collected, prediction_states=None)

    def scores(model: Any) -> dict[str, Tensor]:
        return all_scores(model, rollouts) | {"oar_g_joint": OarG(ProbeSchedule("answer_joint"))(model, rollouts)}

    expected = scores(adapted(PretrainedPolicy(base, lora=LORA).load()).model)
    dtype = "bfloat16" if half == "base" else "float32"
    other = adapted(PretrainedPolicy(base, lora=LORA, dtype=dtype).load()).model
    other = other.bfloat16() if half == "true" else other
    with torch.autocast("cpu", torch.bfloat16, enabled=half != "true"):
        actual = scores(other)
    masks = [(row, mask) for row, mask in enumerate(rollouts.reasoning_mask) if mask.sum() > 3]
    for name, lowest in AGREEMENT.items():
        pairs = [(expected[name][row, mask].numpy(), actual[name][row, mask].float().numpy()) for row, mask in masks]
        found = [rank_correlation(*pair) for pair in pairs]
        assert len(found) == 8
        assert sum(found) / len(found) > lowest, name


def test_the_policy_without_its_adapters_is_the_reference(base: str, collected: Rollouts) -> None:
    """Its log-probabilities, and so the KL, are those of the base policy loaded apart, after the adapters have moved too."""
    loss = LossConfig(kl_coef=0.1)
    module = make_module(PretrainedPolicy(base, lora=LORA).load(), update=UPDATE, loss=loss, lr=3e-2)
    rows = fit(module, 5).rows
    assert rows[1]["kl"] == pytest.approx(0, abs=1e-9)
    assert rows[5]["kl"] > 1e-3
    assert module.experience is not None
    rollouts = module.experience.rollouts
    apart = module.collector.detached_logprobs(PretrainedPolicy(base).load().model, rollouts)
    assert rollouts.ref_logprobs is not None
    assert torch.allclose(rollouts.ref_logprobs, apart, atol=1e-5)
    assert (module.collector.detached_logprobs(module.model, rollouts) - apart).abs().max() > 1e-2


def test_checkpoints_hold_the_adapters_alone_and_go_on_exactly(base: str, tmp_path: Path) -> None:
    def module() -> Any:
        torch.manual_seed(0)
        return make_module(PretrainedPolicy(base, lora=LORA).load(), update=UPDATE, scorer=OarG(), lr=1e-2)

    whole, first, second = module(), module(), module()
    fit(whole, 4, [LastCheckpoint(tmp_path / "whole", 0)])
    fit(first, 2, [RandomState(), LastCheckpoint(tmp_path, 0)])
    saved = torch.load(tmp_path / "last.ckpt", weights_only=True)["state_dict"]
    assert saved
    assert all("lora_" in name for name in saved)
    fit(second, 4, [RandomState()], ckpt_path=str(tmp_path / "last.ckpt"))
    expected, found = weights(whole), weights(second)
    assert all(torch.equal(found[name], expected[name]) for name in expected)
    assert not torch.equal(weights(first)[next(iter(saved)).removeprefix("model.")], found[next(iter(saved))[6:]])
    with pytest.raises(RuntimeError, match="Missing key"):
        fit(make_module(PretrainedPolicy(base).load(), update=UPDATE), 4, ckpt_path=str(tmp_path / "last.ckpt"))


def test_the_export_is_merged_and_has_the_adapters_too(base: str, collected: Rollouts, tmp_path: Path) -> None:
    from peft import PeftModel

    model, tokenizer = adapted(PretrainedPolicy(base, lora=LORA).load(), std=0.3)
    export_policy(model, tokenizer, tmp_path)
    with torch.no_grad():
        plain, merged, wrapped, expected = (
            m(input_ids=collected.token_ids).logits
            for m in (
                AutoModelForCausalLM.from_pretrained(base),
                AutoModelForCausalLM.from_pretrained(tmp_path),
                PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(base), str(tmp_path / ADAPTER)),
                model,
            )
        )
    assert (plain - expected).abs().max() > 0.05
    assert torch.allclose(merged, expected, rtol=1e-4, atol=1e-4)
    assert torch.allclose(wrapped, expected, rtol=1e-6, atol=1e-6)
    assert sorted(p.name for p in (tmp_path / ADAPTER).glob("*.safetensors")) == ["adapter_model.safetensors"]


@pytest.mark.slow
@pytest.mark.parametrize("lora", [None, LORA], ids=["whole", "lora"])
@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("kind", [Prime, functools.partial(IStar, FixedLength(4))], ids=["prime", "istar"])
def test_a_scorer_trains_its_own_model_in_every_combination(
    base: str, precision: str, lora: LoraSpec | None, kind: Callable[..., ImplicitRewards]
) -> None:
    """Checkpointing changes nothing. The loss is log 2 before the first step, and adapters alone are trained."""
    runs = []
    for checkpointing in (False, True):
        torch.manual_seed(0)  # adapters begin with random numbers
        policy = PretrainedPolicy(base, lora=lora, gradient_checkpointing=checkpointing).load()
        reference = None if lora else PretrainedPolicy(base).load().model.requires_grad_(False)
        scorer = kind(lr=1e-3)
        module = make_module(policy, scorer, gate=SignedGate(), update=UPDATE, reference=reference, lr=1e-2)
        rows = fit(module, 3, precision=precision).rows
        assert scorer.own.steps == 3
        state = scorer.state_dict()["weights"]
        assert {w.dtype for w in state.values()} == {torch.float32}
        assert all(("lora_" in name) == (lora is not None) for name in state)
        assert rows[1]["credit/implicit_loss"] == pytest.approx(0.6931, abs=1e-4)
        assert rows[3]["credit/implicit_loss"] != pytest.approx(rows[1]["credit/implicit_loss"], abs=1e-5)
        assert rows[3]["loss"] == pytest.approx(rows[3]["loss"])  # a number
        runs.append((state, [row["credit/implicit_loss"] for row in rows.values() if "credit/implicit_loss" in row]))
    (plain, losses), (checkpointed, others) = runs
    assert others == pytest.approx(losses, rel=1e-4)
    assert checkpointed.keys() == plain.keys()


def test_a_scorer_that_trains_a_model_refuses_float16(base: str) -> None:
    module = make_module(PretrainedPolicy(base, dtype="float16").load(), IStar(FixedLength(4)), gate=SignedGate())
    with pytest.raises(ValueError, match=r"weights are float16: .* use trainer\.precision=bf16-mixed or 32-true"):
        fit(module, 1)
