"""Short runs of every method of the field, and how far the policies are apart with which they end."""

from __future__ import annotations

from importlib import resources
from pathlib import Path

from support.commands import run
from torch import Tensor
from transformers import AutoModelForCausalLM

SMALL = (
    *("num_threads=1", "logger=none", "update.problems=4", "update.group_size=4", "rollout.max_new_tokens=48"),
    *("trainer.max_steps=4", "schedule.warmup_steps=0", "checkpoint_every_n_steps=2"),
    *("evaluation.problems=2", "evaluation.greedy=false"),
)
PLAIN = (
    *("ar", "archer", "eighty_twenty", "entropy", "entropy_advantage", "gtpo", "hicra", "ktae", "otb", "steer", "ucas"),
    *("igpo", "information_gain", "pure", "spae", "spo_chain", "vineppo"),
    *("oar_p", "oar_p_approximate", "total_effect", "total_effect_fast"),
    *("oracle", "oracle_signed", "random", "dapo", "dr_grpo"),
    *("anchor_states", "gigpo", "turning_point"),
)
"""Experiments as they are."""
METHODS = {
    # a copy of the policy that changes after the checkpoint, and is not the policy when that is written
    "rlsd": ("+experiment=rlsd", "scorer.teacher.every=3"),
    "rlsd, another model": ("+experiment=rlsd", "scorer/teacher=given", "scorer.teacher.name=chain"),
    # as published: solutions as hints, and weights that fade away, the last of them after the checkpoint
    "rlsd, fading": ("+experiment=rlsd", "gate.strength_steps=3", "scorer.hint=solution"),
    "serl": ("+experiment=serl",),
    "action_mask": ("+experiment=action_mask",),
    "rlsd_contrast": ("+experiment=rlsd_contrast",),
    "rlcsd": ("+experiment=rlcsd",),
    "shear": ("+experiment=shear",),
    "acpo": ("+experiment=acpo",),
    "acpo_add": ("+experiment=acpo_add",),
    # from their default start of 0 the coefficients would stay 0 while the entropy is above its target
    "adaptive entropy": ("+experiment=grpo", "entropy=adaptive", "entropy.coef_start=0.05", "entropy.rate=0.02"),
    "entropy by step": ("+experiment=information_gain", "entropy=explore", "entropy.coef_start=0.05", "entropy.rate=0.02"),
    "entropy in nats": ("+experiment=grpo", "entropy=step", "entropy.coef_start=0.05", "entropy.target=1"),
    "capo": ("+experiment=capo",),
    "spro": ("+experiment=spro",),
    "prime": ("+experiment=prime",),
    "istar": ("+experiment=istar",),
    "curriculum": ("+experiment=grpo", "curriculum=difficulty", "curriculum.floor=0.01"),
    **{name: (f"+experiment={name}",) for name in PLAIN},
}


def distance(one: dict[str, Tensor], other: dict[str, Tensor]) -> float:
    return sum(float((weight - other[name]).double().square().sum()) for name, weight in one.items()) ** 0.5


def policy(folder: Path) -> dict[str, Tensor]:
    return dict(AutoModelForCausalLM.from_pretrained(folder).state_dict())


def share_apart(one: Path, other: Path) -> float:
    """How far two policies are apart that began as `chain`, as a share of what the second has learned."""
    begun = policy(Path(str(resources.files("oar_lightning") / "assets" / "chain")))
    ended = policy(other)
    return distance(policy(one), ended) / distance(ended, begun)


def trained(folder: Path, name: str, *overrides: str) -> dict[str, Tensor]:
    """The policy with which a run ends."""
    done = run(folder, *SMALL, f"hydra.run.dir={name}", f"export_to={name}_policy", *overrides, timeout=300)
    assert done.code == 0, done.shown
    return policy(folder / f"{name}_policy")
