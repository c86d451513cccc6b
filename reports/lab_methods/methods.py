"""The estimators of the page: the methods of each family, and what is left out, and why."""

from __future__ import annotations

from oar_lightning.lab.study import estimator

TASKS: dict[str, list[str]] = {
    "chain": [],
    "asides": ["+variant=asides"],
    "one_step": ["+variant=one_step"],
    "graph": ["+variant=graph"],
    "graph_hints": ["+variant=graph", "policy=graph_hints"],
}

HINTED = "graph_hints"
"""The task whose policy reads another solution as a hint, and no other hint: the lab of the methods that tell one."""

FAMILIES: dict[str, tuple[str, ...]] = {
    "OAR": ("oar_g", "oar_p", "oar_p_approximate"),
    "total effect": ("total_effect", "total_effect_fast"),
    "forward-free": (
        "eighty_twenty",
        "entropy",
        "entropy_advantage",
        "gtpo",
        "ar",
        "steer",
        "ucas",
        "ktae",
        "hicra",
        "otb",
        "shear",
    ),
    "Monte-Carlo values": ("vineppo", "spo_chain"),
    "information gain": ("information_gain", "igpo", "spae", "pure", "acpo", "acpo_add"),
    "judged steps": ("capo",),
    "hindsight": ("rlsd", "serl", "rlsd_contrast", "rlcsd"),
    "shared states": ("gigpo", "anchor_states"),
    "turning points": ("turning_point",),
    "implicit rewards": ("prime", "istar"),
    "start of training": ("spro",),
    "control": ("grpo", "random", "action_mask", "oracle"),
}
"""Family -> the experiments of it, which are the estimators. A family's name is that of its part of docs/methods.md."""

FURTHER = {
    "shuffled": estimator("shuffled", "shuffled", "bilevel"),
    "inverted": estimator("inverted", "inverted", "bilevel"),
    "late": [],
    "early": [],
    "improbability": [],
    "is_digit": [],
}
"""Controls that no experiment trains with -> their overrides; none for those of the lab's own list."""

BASELINE = "is_digit"

DEFAULTS = (
    "random",
    "entropy",
    "oracle",
    "oar_g",
    "oar_p",
    "information_gain",
    "total_effect",
    "total_effect_fast",
)
"""Estimators of the lab's own list that an experiment replaces, whose gate is another in part."""

LOSS = "their credit is GRPO's, the same for all tokens; the loss differs"
SETTING = "no method: a setting of OAR-G"
SUPERVISED = "supervised training"
LEFT_OUT = {
    "archer": "scores are those of `entropy`, and token advantages GRPO's: they widen clip bounds, of which nothing is seen "
    "in a single gradient of what was just sampled",
    "dapo": LOSS,
    "dr_grpo": LOSS,
    "oracle_signed": "its right and wrong decisions are those of `oracle` and `capo`",
    "paper_qwen2_5_1_5b": SETTING,
    "paper_qwen2_5_7b": SETTING,
    "smoke": SETTING,
    "warm_start": SUPERVISED,
    "warm_start_graph": SUPERVISED,
    "warm_start_graph_asides": SUPERVISED,
    "warm_start_graph_hints": SUPERVISED,
    "warm_start_graph_misconceptions": SUPERVISED,
}
"""Experiment -> why no estimator is it."""

LEFT_OUT_SCORERS = {
    "oar_p_steps": "`oar_p` of whole steps; no experiment has it",
    "oracle_signed": LEFT_OUT["oracle_signed"],
    "reference_oar_g": "an unoptimised second implementation of `oar_g`, to which tests hold that",
    "reference_oar_p": "an unoptimised second implementation of `oar_p`, to which tests hold that",
}

READS_HINTS = ("rlsd", "serl", "rlsd_contrast", "rlcsd")
TOLD_A_SOLUTION = {"rlsd": ["scorer.hint=correct_sibling"], "serl": ["scorer.hint=correct_sibling"]}
"""Experiment -> further settings where the policy reads solutions alone."""
PAST = ("spro", "prime", "istar")

DAPO = "loss.reduction=dapo"

COMPARED = ("grpo", "random")
"""Beside `BASELINE`, in each of the small labs."""

LAB_OF = {"spro": "after SPRO's run", "istar": "after iStar's run", "rlcsd": f"`{DAPO}`"}
"""Experiment -> what is special about a small lab of its own."""
