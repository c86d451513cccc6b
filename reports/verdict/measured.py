"""What was measured beside training: gradients, the lab's predictions, and the time of a step."""

from __future__ import annotations

import functools
import json
import math
from typing import Any

from leads import REPORTS, script
from omegaconf import OmegaConf

from oar_lightning.benchmark import PhaseResult
from oar_lightning.benchmark.report import FEWEST_ROUNDS, read_results
from oar_lightning.common.paths import conf_dir


@functools.cache
def mechanism() -> dict[str, Any]:
    """Policy -> the statistics of its gradients, method by method."""
    found: dict[str, Any] = json.loads((REPORTS / "mechanism" / "results.json").read_text(encoding="utf-8"))
    return found


def gradient_text() -> str:
    """What the weights of OAR-G do to the gradient, policy by policy, and what perfect credit does in the same gate."""
    found = mechanism()

    def shown(name: str, method: str, key: str) -> str:
        value, low, high = found[name]["methods"][method][key]
        return f"{value:.2f} [{low:.2f}, {high:.2f}]"

    names = {"graph": "graph", "graph_trained": "graph, trained"}
    texts = [
        f"{title}: cosine of its mean with GRPO's {shown(name, 'oar_g', 'adam_cosine')}, variance over GRPO's "
        f"{shown(name, 'oar_g', 'variance')}"
        for name, title in names.items()
    ]
    signal = [
        f"{title} {100 * found[name]['methods'][m]['adam'][0]:.1f} %"
        for name in ("graph",)
        for m, title in (("uniform", "GRPO"), ("oar_g", "OAR-G"), ("oracle, paper's gate", "perfect credit in OAR's gate"))
    ]
    return "; ".join([*texts, "share of signal on graph: " + ", ".join(signal)])


def gradient_verdict() -> str:
    found = mechanism()
    own = [found[name]["methods"]["oar_g"] for name in ("graph", "graph_trained")]
    turned = any(high < 1 for _, _, high in (one["adam_cosine"] for one in own))
    noisier = all(low > 1 for _, low, _ in (one["variance"] for one in own))
    return ("yes" if turned else "not shown") + ("; more variance on `graph`" if noisier else "")


MEASURE = "gradients.same_batch/(values)"
"""The cosine of a method's policy gradient with that under Monte-Carlo values."""


def prediction(task: str) -> tuple[str, str, str]:
    """Verdict, figures with and without the methods that gained and lost most, and the number of methods."""
    lab = script("lab_training")
    values, gained = lab.measured(task)[MEASURE], lab.gains(list(lab.studied_runs(task)))
    found, rest = (lab.predict(MEASURE, values, own) for own in (gained, lab.without_ends(gained)))
    word = "a sign of it" if found.low > 0 else "not shown"
    if math.isnan(rest.low):
        word += "; without three methods too few to tell"
    elif found.low > 0 >= rest.low:
        word += ", lost without three methods"
    return f"{task} {word}", f"{task} {lab.shown(found)}, {lab.shown(rest)}", f"{found.methods} methods"


STEPS = {"oar_g": "OAR-G", "oar_p_approximate": "approximate OAR-P", "oar_p": "exact OAR-P"}
TARGETS = OmegaConf.load(conf_dir() / "benchmark" / "tiny.yaml").step_bars
"""Most GRPO steps that a step of theirs should take."""


@functools.cache
def timed() -> dict[str, dict[str, PhaseResult]]:
    """Variant -> phase -> what `task=benchmark` measured."""
    return read_results(REPORTS / "benchmark_tiny" / "results.json")


@functools.cache
def step_ratios() -> dict[str, tuple[float, float]]:
    """Variant -> GRPO steps that its step takes, and that it would if scoring took what its products and attention take."""
    grpo = timed()["grpo"]["step"].median_seconds
    found = {}
    for key in STEPS:
        measured, products = timed()[key]["step"].step_ratio, timed()[key]["scoring"].product_seconds
        assert measured is not None, "a step has a ratio"
        assert products is not None, "the file is of a benchmark that took the seconds of products"
        found[key] = (measured, 1 + products / grpo)
    return found


def ratio_ranges() -> dict[str, str]:
    """Variant -> the smallest and the largest ratio of its rounds, where the measurement has kept them."""
    kept = {key: timed()[key]["step"].step_ratio_range for key in STEPS}
    return {key: f" ({found[0]:.2f} to {found[1]:.2f})" if found else "" for key, found in kept.items()}


def cost_text() -> str:
    ranges = ratio_ranges()
    whole = ", ".join(f"{name} {step_ratios()[key][0]:.2f}{ranges[key]}" for key, name in STEPS.items())
    products = ", ".join(f"{name} {step_ratios()[key][1]:.2f}" for key, name in STEPS.items())
    return f"{whole} GRPO steps; if scoring were nothing but its products and attention {products}"


def cost_verdict() -> str:
    return "; ".join(f"{name} {_met(key)}" for key, name in STEPS.items())


def _met(key: str) -> str:
    """Whether a step costs at most its target, where the page of the benchmark judges that, too."""
    step = timed()[key]["step"]
    if step.disturbed or step.rounds < FEWEST_ROUNDS:
        return "not judged"
    return "yes" if step_ratios()[key][0] <= TARGETS[key] else "no"
