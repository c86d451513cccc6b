"""What methods and tasks are called, and how a method is drawn: the same in all figures."""

from __future__ import annotations

from collections.abc import Sequence

from leads import TOLD, families

from oar_lightning.reporting.method_style import STYLES, Style

NAMES = {
    families.BASELINE: "GRPO",
    "oracle": "perfect credit",
    "oracle_results": "perfect credit of another kind (all results)",
    "oar_g": "OAR-G",
    "oar_g_last": "the first answer token's distribution",
    "oar_g_joint": "the answer's joint probability",
    "oar_g_tau_0.3": "OAR-G, tau 0.3",
    "oar_g_tau_0.7": "OAR-G, tau 0.7",
    "oar_g_boost_only": "OAR-G, boosting alone",
    "oar_g_suppress_only": "OAR-G, suppressing alone",
    "oar_g_higher": "OAR-G at a higher rate",
    "grpo_higher": "GRPO at a higher rate",
    "oar_p": "OAR-P",
    "total_effect_fast": "fast total effect in the sharp gate",
    "information_gain": "information gain",
    "vineppo": "Monte-Carlo values (VinePPO)",
    "eighty_twenty": "80/20",
    "entropy": "entropy in OAR's gate",
    "random": "random scores in OAR's gate",
    "shuffled": "OAR-G's scores, shuffled",
    "inverted": "OAR-G's scores, inverted",
    "capo": "CAPO with an exact judge",
    "shear": "SHEAR",
    "acpo": "ACPO",
    "acpo_add": "ACPO, added",
    "aer": "adaptive entropy (AER)",
    "curriculum": "curriculum of difficulty",
    "spro": "SPRO",
    "prime": "PRIME",
    "istar": "iStar",
    "rlsd": "hindsight (RLSD)",
    "rlsd_contrast": "hindsight, right against wrong (RLSD)",
    "rlcsd": "hindsight, right against wrong (RLCSD)",
    "serl": "hindsight on numbers and operators (SERL)",
    "action_mask": "numbers and operators alone (SERL's mask)",
    "anchor_states": "shared states",
    "gigpo": "shared states, added (GiGPO)",
    "turning_point": "turning point",
    "grpo_more": "GRPO, 10 completions a problem in place of 8",
    "grpo_double": "GRPO, 16 completions a problem in place of 8",
    "grpo_in_oar_g_time": "GRPO in OAR-G's time",
    "grpo_longer": "GRPO trained longer",
    "oracle_longer": "perfect credit trained longer",
    "turning_point_longer": "turning point trained longer",
    "turning_point_seldom_longer": "turning point, seldom searched, in the time of GRPO trained longer",
    "anchor_states_longer": "shared states, in the time of GRPO trained longer",
    "entropy_penalty": "GRPO, paid for less entropy",
    "oar_g_in_sharp_gate": "OAR-G in the sharp gate",
    "oracle_in_oars_gate": "perfect credit in OAR's gate",
    "total_effect": "total effect in the sharp gate",
    "position": "position in OAR's gate",
    "turning_point_short": "turning point in GRPO's time",
    "turning_point_seldom": "turning point, seldom searched, in GRPO's time",
    "anchor_states_shuffled": "shared states' weights on other tokens of each completion",
    "turning_point_shuffled": "turning point's weights on other tokens of each completion",
}
"""Method -> what a reader is told."""

ONE_SIGN = {"_negative": ", of wrong completions alone", "_positive": ", of right completions alone"}
"""What a method's name ends in whose gate reshapes one sign of advantages -> what a reader is told."""


def parts(method: str) -> tuple[str, str]:
    """A method without the sign that its name ends in, and that sign in words."""
    for end, words in ONE_SIGN.items():
        if method.endswith(end):
            return method.removesuffix(end), words
    return method, ""


def named(method: str) -> str:
    base, sign = parts(method)
    return NAMES.get(base, base.replace("_", " ")) + sign


TASKS = {"one_step": "one step", "graph_hints": "graph, a policy that reads hints"}
"""Variant -> its name in figures, where that is another one."""


def style(method: str) -> dict[str, str]:
    base, sign = parts(method)
    own = STYLES.get(base, Style("#000000", "*" if method in TOLD else "1"))
    return {"color": own.color, "marker": own.marker if not sign else "<" if sign == ONE_SIGN["_negative"] else ">"}


def rate(lr: float) -> str:
    """A learning rate as it is spoken of: 1e-4, 1.5e-4."""
    mantissa, exponent = f"{lr:.1e}".split("e")
    return f"{float(mantissa):g}e{int(exponent)}"


def listed(words: Sequence[str]) -> str:
    """`a`, `a and b`, `a, b and c`; `none`."""
    return " and ".join(filter(None, [", ".join(words[:-1]), words[-1]])) if words else "none"
