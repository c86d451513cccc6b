"""Scorers over empty tensors hold what they hold over true ones."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal

import pytest
import torch
from support.toy import tools
from transformers import AutoModelForCausalLM, GPT2Config, MistralConfig, Qwen2Config

from oar_lightning.credit.own_model import OwnModel
from oar_lightning.credit.scorers import (
    Entropy,
    FunctionScorer,
    InformationGain,
    Inverted,
    IStar,
    MinForm,
    MonteCarlo,
    OarG,
    OarP,
    OarPApproximate,
    OarPSteps,
    Prime,
    Scorer,
    Shuffled,
    Spae,
    Spans,
    TotalEffect,
    TotalEffectFast,
    TurningPoint,
    Uniform,
)
from oar_lightning.credit.scorers.forward_free import Gtpo, Shear
from oar_lightning.credit.scorers.hindsight import Contrast, Rlsd
from oar_lightning.credit.segments import FixedLength, LowProbabilityCuts
from oar_lightning.credit.teachers import GivenTeacher, LaggedPolicy, PolicyItself, Teacher
from oar_lightning.planning import dry_run
from oar_lightning.planning.empty import no_memory, peak_bytes
from oar_lightning.planning.job import Job, plan_job
from oar_lightning.planning.memory import MEMORY_PHASES, Sharding
from oar_lightning.planning.policy import policy_size, policy_without_weights
from oar_lightning.planning.proposal import propose
from oar_lightning.planning.scoring import (
    Batch,
    dry_run_budgets,
    dry_run_inputs,
    most_tokens,
    own_model_items,
    row_tokens,
    scorer_budget,
    teacher_items,
)
from oar_lightning.planning.scoring.hindsight import WORDS
from oar_lightning.policy.pretrained import LoraSpec, PretrainedPolicy
from oar_lightning.rollout import CachedEngine, SamplingConfig
from oar_lightning.rollout.continuations import LEAST_TOKENS
from oar_lightning.training.slots import UpdatePlan
from oar_lightning.types import MathProblem, Rollouts

QWEN = Qwen2Config(
    vocab_size=300,
    hidden_size=32,
    intermediate_size=80,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    bos_token_id=None,
    eos_token_id=None,
)
GPT2 = GPT2Config(vocab_size=300, n_embd=32, n_layer=2, n_head=4, bos_token_id=1, eos_token_id=1)
BATCH = Batch(prompt=12, completion=20, answer=3, conclusion=2, group_size=2, problems=2)
BUDGET = 100
SCORERS: dict[str, Scorer] = {
    "oar_g": OarG(token_budget=BUDGET),
    "oar_p": OarP(token_budget=BUDGET),
    "model_sample": OarP(token_budget=BUDGET, fill="model_sample"),
    "attribution": OarPApproximate(token_budget=BUDGET),
    "spans": OarPApproximate(coarse=Spans(), token_budget=BUDGET),
    "oar_p_steps": OarPSteps(segments=FixedLength(1), token_budget=BUDGET),
    "entropy": Entropy(token_budget=BUDGET),
    "shuffled": Shuffled(OarG(token_budget=BUDGET)),
    "gtpo": Gtpo(token_budget=BUDGET),
    "shear": Shear(token_budget=BUDGET),
    "rlsd": Rlsd(teacher=PolicyItself(), token_budget=BUDGET),
    "total_effect": TotalEffect(token_budget=BUDGET),
    "total_effect_fast": TotalEffectFast(token_budget=BUDGET),
    "information_gain": InformationGain(FixedLength(1), token_budget=BUDGET),
    "spae": Spae(FixedLength(1), token_budget=BUDGET),
    "min_form": MinForm(InformationGain(FixedLength(1), token_budget=BUDGET, mode="own")),
}


@pytest.fixture(autouse=True)
def _attention(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRANSFORMERS_SDPA_FORCE_GQA", "1")


def pair(config: Any, folder: Path, dtype: torch.dtype = torch.float32, lora: LoraSpec | None = None) -> tuple[Any, Any]:
    """A policy with weights and the same without."""
    config.save_pretrained(folder)
    torch.manual_seed(0)
    true = AutoModelForCausalLM.from_config(config, dtype=dtype, attn_implementation="sdpa")
    true = true if lora is None else lora.apply(true)
    with no_memory():
        return true.eval(), policy_without_weights(PretrainedPolicy(str(folder), lora=lora), dtype)


TEXT = ("token_ids", "attention_mask", "response_mask", "reasoning_mask", "answer_mask")
ALIKE = ("gtpo", "spae", "min_form", "spans", "attribution", "shuffled", "oar_p_steps", "total_effect_fast", "model_sample")
"""Scorers that run what others run."""


def told(texts: Rollouts, questions: Sequence[str]) -> Rollouts:
    """The texts after prompts that tell an answer in a few words."""
    longer = dry_run.completions(len(texts), 1, BATCH.prompt + BATCH.answer + WORDS, BATCH.completion, BATCH.answer)
    return replace(texts, **{name: getattr(longer, name) for name in TEXT})


@pytest.mark.parametrize("name", [pytest.param(name, marks=[pytest.mark.slow] * (name in ALIKE)) for name in SCORERS])
def test_a_dry_run_holds_what_scoring_holds(name: str, tmp_path: Path) -> None:
    """Of all completions of a rank, true weights, all tokens: one full batch without weights is as large."""
    true, empty = pair(QWEN, tmp_path)
    scorer = SCORERS[name]
    everything = dry_run.completions(
        BATCH.rows, BATCH.group_size, BATCH.prompt, BATCH.completion, BATCH.answer, BATCH.conclusion
    )
    everything = replace(
        everything,
        advantages=torch.tensor([1.0, -1.0]).repeat(BATCH.problems),
        problems=(MathProblem("", "0"),) * BATCH.rows,
        answers=("0",) * BATCH.rows,
    )
    scorer.use(tools(reprompt=told, encode=lambda before, text: ([0] * len(before), [0] * BATCH.answer)))
    expected = dry_run.scoring_bytes(true, scorer, everything)
    planned = dry_run.scoring_bytes(empty, *dry_run_inputs(scorer, BATCH, BUDGET))
    assert planned == pytest.approx(expected, rel=0.08)


@pytest.mark.slow
def test_a_dry_run_holds_what_transport_holds(tmp_path: Path) -> None:
    """With blocks so large that they are the peak, less with a smaller budget; all iterations are measured, a few planned."""
    pytest.importorskip("ot.batch", reason="the extra transport is not installed")
    true, empty = pair(QWEN, tmp_path)
    batch = replace(BATCH, completion=60, group_size=4, problems=1)
    scorer = Shear(distance="wasserstein", iterations=7, token_budget=400)
    planned, less = (dry_run.scoring_bytes(empty, *dry_run_inputs(scorer, batch, budget)) for budget in (400, 100))
    texts = dry_run.completions(4, 4, batch.prompt, batch.completion, batch.answer, batch.conclusion)
    texts = replace(texts, advantages=torch.tensor([1.0, -1.0] * 2))
    assert planned == pytest.approx(dry_run.scoring_bytes(true, scorer, texts), rel=0.08)
    assert planned > 3 * less


@pytest.mark.slow
@pytest.mark.parametrize(
    "scorer",
    [
        Contrast(teacher=PolicyItself(), token_budget=BUDGET),
        Rlsd("correct_sibling", teacher=PolicyItself(), token_budget=BUDGET),
    ],
)
def test_a_dry_run_holds_what_hints_of_siblings_hold(scorer: Scorer, tmp_path: Path) -> None:
    """In one group of four, each told by texts of the greatest length."""
    true, empty = pair(QWEN, tmp_path)
    batch = replace(BATCH, group_size=4, problems=1)
    texts = dry_run.completions(4, 4, batch.prompt, batch.completion, batch.answer, batch.conclusion)
    texts = replace(texts, advantages=torch.tensor([1.0, -1.0] * 2), problems=(MathProblem("", "0"),) * 4)
    hint = WORDS + batch.completion

    def longer(texts: Rollouts, questions: Sequence[str]) -> Rollouts:
        wide = dry_run.completions(len(texts), 1, batch.prompt + hint, batch.completion, batch.answer)
        return replace(texts, **{name: getattr(wide, name) for name in TEXT})

    scorer.use(tools(reprompt=longer))
    expected = dry_run.scoring_bytes(true, scorer, replace(texts, completions=("",) * 4))
    assert scorer.metrics["unread_frac"] == 0
    assert dry_run.scoring_bytes(empty, *dry_run_inputs(scorer, batch, BUDGET)) == pytest.approx(expected, rel=0.08)


@pytest.mark.parametrize(("prefix", "new"), [(16, 32), (47, 1)])
def test_a_dry_run_holds_what_continuations_hold(prefix: int, new: int, tmp_path: Path) -> None:
    """Three continuations of each of two prefixes, sampled by the engine without an end of text."""
    true, empty = pair(QWEN, tmp_path)
    engine = CachedEngine(SimpleNamespace(eos_token_id=-1, pad_token_id=0))
    prompts = [[number] * prefix for number in (1, 2)]
    sampling = SamplingConfig(new, keep_states=False)
    expected = peak_bytes(lambda: engine(true, prompts, 3, sampling, [5, 6]))
    planned = dry_run.generation_bytes(empty, dry_run.completions(6, 3, prefix, new), sampling, False)
    assert planned == pytest.approx(expected, rel=0.08)


@pytest.mark.slow
def test_continuations_are_planned_in_the_phase_of_scoring(tmp_path: Path) -> None:
    """More rows hold more, and the proposal for sampling leaves room for them."""
    QWEN.save_pretrained(tmp_path)
    scorer = MinForm(MonteCarlo(FixedLength(4), 3))
    update = UpdatePlan(problems=3, group_size=2)
    job = Job(PretrainedPolicy(str(tmp_path)), "32-true", Sharding(), update, SamplingConfig(32), scorer, 16, 3)
    planned = plan_job(job)
    assert not planned.unknown_scorer
    assert planned.continuations is not None
    few, more = (planned.continuations(48 * rows) for rows in (1, 6))
    assert 0 < few < more
    assert planned.plan.of("scoring") >= planned.continuations(LEAST_TOKENS) > more
    assert plan_job(replace(job, sampling=SamplingConfig(32, max_batch=6))).plan.of("scoring") < planned.plan.of("scoring")
    bounded = propose(job, planned, planned.plan.without("continuations", "scoring") + few)
    assert bounded.rollout_tokens == 48
    alone = replace(job, sampling=SamplingConfig(32, max_batch=1))
    reads = replace(alone, scorer=MonteCarlo(LowProbabilityCuts(), 3))
    assert plan_job(reads).plan.of("scoring") > plan_job(alone).plan.of("scoring"), "a pass over all completions"
    turning = plan_job(replace(job, scorer=TurningPoint()))
    assert turning.continuations is not None
    assert not turning.unknown_scorer


@pytest.mark.slow
def test_generation_that_our_own_loop_does_not_do_is_left_out_and_told(tmp_path: Path) -> None:
    """`generate` samples policies with a sliding window, and all policies with engine=hf; it keeps no hidden states."""
    shape = {"vocab_size": 300, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 2}
    for name, config in (("plain", QWEN), ("window", MistralConfig(**shape, num_key_value_heads=1, sliding_window=8))):
        config.save_pretrained(tmp_path / name)
    job = Job(
        PretrainedPolicy(str(tmp_path / "plain")), "32-true", Sharding(), UpdatePlan(2, 2), SamplingConfig(8), Uniform(), 16, 3
    )
    of_generate = [replace(job, policy=PretrainedPolicy(str(tmp_path / "window"))), replace(job, own_loop=False)]
    for other in of_generate:
        planned = plan_job(other)
        assert planned.unknown_generation
        assert planned.rollout is None
        assert not {"generation", "hidden states"} & {item.name for item in planned.plan.items}
        assert propose(other, planned, 1e12).rollout_tokens is None
    planned = plan_job(replace(job, sampling=SamplingConfig(8, keep_states=False)))
    assert not planned.unknown_generation
    assert "hidden states" not in {item.name for item in planned.plan.items}
    assert "hidden states" in {item.name for item in plan_job(job).plan.items}


WIDER = Qwen2Config(**QWEN.to_diff_dict() | {"hidden_size": 128, "intermediate_size": 1000})


@pytest.mark.slow
def test_a_teacher_is_planned_in_all_phases(tmp_path: Path) -> None:
    """A copy holds what is trained, another model its own weights; and a larger one's passes are larger."""
    for name, config in (("policy", QWEN), ("teacher", WIDER)):
        config.save_pretrained(tmp_path / name)
    policy, given = PretrainedPolicy(str(tmp_path / "policy")), GivenTeacher(str(tmp_path / "teacher"))
    job = Job(policy, "32-true", Sharding(), UpdatePlan(2, 2), SamplingConfig(8), Rlsd(), 16, 3)
    teachers: tuple[Teacher, ...] = (PolicyItself(), LaggedPolicy(), given)
    itself, copied, other = (plan_job(replace(job, scorer=Shuffled(Rlsd(teacher=teacher)))) for teacher in teachers)
    weights = 4 * sum(p.numel() for p in AutoModelForCausalLM.from_config(WIDER).parameters())
    for phase in ("rollout", "update", "optimizer step"):
        assert copied.plan.of(phase) - itself.plan.of(phase) == itself.size.trained_bytes
        assert other.plan.of(phase) - itself.plan.of(phase) == weights
    assert other.plan.of("scoring") - itself.plan.of("scoring") > weights
    assert teacher_items(OarG(), itself.size) == []


@pytest.mark.slow
def test_a_dry_run_holds_what_a_larger_teacher_holds(tmp_path: Path) -> None:
    """Its passes are the largest ones then."""
    true, empty = pair(QWEN, tmp_path / "policy")
    pair(WIDER, tmp_path / "teacher")[0].save_pretrained(tmp_path / "teacher")
    teacher = GivenTeacher(str(tmp_path / "teacher"))
    scorer = Rlsd(teacher=teacher, token_budget=BUDGET)
    planned = dry_run.scoring_bytes(empty, *dry_run_inputs(scorer, BATCH, BUDGET))
    teacher.model = AutoModelForCausalLM.from_pretrained(tmp_path / "teacher")
    scorer._reprompt = told
    texts = dry_run.completions(BATCH.rows, BATCH.group_size, BATCH.prompt, BATCH.completion, BATCH.answer, BATCH.conclusion)
    texts = replace(texts, advantages=torch.tensor([1.0, -1.0] * 2), problems=(MathProblem("", "0"),) * 4, answers=("0",) * 4)
    assert planned == pytest.approx(dry_run.scoring_bytes(true, scorer, texts), rel=0.08)
    assert planned > 1.2 * dry_run.scoring_bytes(true, replace_teacher(scorer), texts)


def replace_teacher(scorer: Rlsd) -> Rlsd:
    """The same scorer with the policy as its own teacher."""
    alone = Rlsd(teacher=PolicyItself(), token_budget=BUDGET)
    alone._reprompt = scorer._reprompt
    return alone


@pytest.mark.parametrize("kind", ["gpt2", "bfloat16", "lora"])
@pytest.mark.parametrize("name", ["oar_g", pytest.param("attribution", marks=pytest.mark.slow)])
def test_other_families_precisions_and_adapters(kind: str, name: str, tmp_path: Path) -> None:
    true, empty = {
        "gpt2": lambda: pair(GPT2, tmp_path),
        "bfloat16": lambda: pair(QWEN, tmp_path, torch.bfloat16),
        "lora": lambda: pair(QWEN, tmp_path, lora=LoraSpec(r=4)),
    }[kind]()
    scorer, texts = dry_run_inputs(SCORERS[name], BATCH, BUDGET)
    planned, expected = (dry_run.scoring_bytes(m, scorer, texts) for m in (empty, true))
    assert planned == pytest.approx(expected, rel=0.02)


@pytest.mark.slow
def test_more_budget_holds_more_until_everything_is_in_one_batch(tmp_path: Path) -> None:
    empty = pair(QWEN, tmp_path)[1]
    for scorer in (OarG(), OarP()):
        most = most_tokens(scorer, BATCH)
        budgets = [min(BUDGET, most // 2), most, 2 * most]
        held = [dry_run.scoring_bytes(empty, *dry_run_inputs(scorer, BATCH, budget)) for budget in budgets]
        assert held[0] < held[1] == held[2]


def test_budgets_of_dry_runs() -> None:
    batch = replace(BATCH, prompt=400, completion=1001, problems=3)
    assert dry_run_budgets(OarG(), batch, 3000) == [1000, 3000]
    assert dry_run_budgets(OarG(), batch, 10**6) == [1000, 7000]  # no more than all of them
    assert dry_run_budgets(OarP(), batch, 700) == [256, 700, 1401, 2802]
    assert dry_run_budgets(OarP(), batch, 1400) == [256, 1401, 2802]


def test_what_is_known_of_scorers() -> None:
    inner = Inverted(Shuffled(OarP(token_budget=77)))
    assert scorer_budget(inner) == 77
    assert row_tokens(inner, BATCH) == 32
    assert row_tokens(MonteCarlo(FixedLength(4)), BATCH) is None, "rollout.token_budget bounds it"
    own = FunctionScorer(lambda model, rollouts: rollouts.token_ids.float())
    assert scorer_budget(own) is None
    assert row_tokens(own, BATCH) is None


@pytest.mark.parametrize("kind", ["float32", *(pytest.param(kind, marks=pytest.mark.slow) for kind in ("bfloat16", "lora"))])
def test_a_scorers_own_model_is_planned(kind: str, tmp_path: Path) -> None:
    """What it holds after a step, counted tensor by tensor; and the peak of a step beside that, with true weights."""
    dtype, lora = torch.bfloat16 if kind == "bfloat16" else torch.float32, LoraSpec(r=4) if kind == "lora" else None
    true, empty = pair(QWEN, tmp_path, dtype, lora)
    budget = 2 * BATCH.length  # the four rows are two passes of two, as planned; of a budget of 100 three are planned
    scorer = Prime(token_budget=budget)
    scorer.begin(true)
    own = scorer.own
    texts = dry_run.completions(BATCH.rows, BATCH.group_size, BATCH.prompt, BATCH.completion)

    def step() -> None:
        own.step(texts, lambda rows, logprobs: logprobs.sum())

    step()
    items = {item.name: item for item in own_model_items(Shuffled(scorer), policy_size(empty))}
    weights = {id(p): p for p in [*own.model.parameters(), *own._masters.values()] if p.requires_grad}
    held = {"scorer's model": list(weights.values()), "scorer's optimizer states": moments(own)}
    for name, tensors in held.items():
        assert items[name].bytes == sum(t.numel() * t.element_size() for t in tensors), name
        assert set(items[name].phases) == set(MEMORY_PHASES)
    planned = dry_run.scoring_bytes(empty, *dry_run_inputs(scorer, BATCH, budget)) + items["scorer's gradients"].bytes
    # of half precision and adapters, tensors as small as these, a few buffers too many are planned
    most = 1.1 if kind == "float32" else 1.25
    assert 0.95 <= planned / peak_bytes(step) <= most
    assert own_model_items(OarG(), policy_size(empty)) == []


@pytest.mark.parametrize("precision", ["32-true", pytest.param("bf16-mixed", marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    "scorer",
    [
        pytest.param(Prime(token_budget=BUDGET), id="prime"),
        pytest.param(IStar(FixedLength(4), token_budget=BUDGET), id="istar", marks=pytest.mark.slow),
    ],
)
def test_what_a_scorer_trains_is_not_sharded(scorer: Scorer, precision: str, tmp_path: Path) -> None:
    """By hand, in all of a job on four ranks with ZeRO 2, which divides the policy's gradients and optimizer. ZeRO keeps 16-bit
    weights in mixed precision, beside which the scorer's optimizer has float32 ones."""
    QWEN.save_pretrained(tmp_path)
    sharding, update = Sharding(4, 2), UpdatePlan(problems=8, group_size=2)
    policy, sampling = PretrainedPolicy(str(tmp_path)), SamplingConfig(8)
    job = Job(policy, precision, sharding, update, sampling, scorer, 16, 3, kl=scorer.needs_reference)
    planned = plan_job(job)
    parameters = sum(p.numel() for p in AutoModelForCausalLM.from_config(QWEN).parameters())
    weight = 4 if precision == "32-true" else 2
    of_model = 4 if precision == "32-true" else 2 + 4
    held = {item.name: (item.bytes / parameters, set(item.phases)) for item in planned.plan.items}
    always = set(MEMORY_PHASES)
    assert held["weights"] == (weight, always)
    assert held["gradients"] == (weight / 4, always)
    assert held["optimizer states"] == ((8 + 4) / 4, always), "with float32 weights of its own"
    assert held["scorer's model"] == (of_model, always)
    assert held["scorer's optimizer states"] == (8, always)
    assert held["scorer's gradients"] == (4, {"scoring"})
    assert held.get("reference model") == ((4, always) if isinstance(scorer, Prime) else None)
    assert planned.scoring is not None
    assert not planned.unknown_scorer
    of_items = sum(item.bytes for item in planned.plan.items if "scoring" in item.phases)
    assert planned.plan.of("scoring") == of_items > planned.plan.without("scoring", "scoring")


def test_an_update_in_bfloat16_is_planned_as_under_autocast_and_scoring_as_without(tmp_path: Path) -> None:
    QWEN.save_pretrained(tmp_path)

    def planned(precision: str, dtype: Literal["bfloat16"] | None) -> dict[str, float]:
        update, sampling = UpdatePlan(problems=8, group_size=2, inner_epochs=2, dtype=dtype), SamplingConfig(8)
        job = Job(PretrainedPolicy(str(tmp_path)), precision, Sharding(), update, sampling, OarG(), 16, 3)
        return {item.name: item.bytes for item in plan_job(job).plan.items}

    full, half, update = planned("32-true", None), planned("bf16-mixed", None), planned("32-true", "bfloat16")
    for name in ("update's pass", "log-probabilities' pass"):
        assert update[name] == half[name] != full[name], name
    assert update["scoring"] == full["scoring"] != half["scoring"]


def moments(own: OwnModel) -> list[torch.Tensor]:
    assert own._optimizer is not None
    return [value for state in own._optimizer.state.values() for name, value in state.items() if name != "step"]
