"""Do scores in bfloat16 order tokens as those in float32 do? On sampled completions of the built-in task.

`python reports/half_precision/measure.py` prints the table of README.md.
"""

from __future__ import annotations

import dataclasses
import statistics
import sys
from collections.abc import Callable
from itertools import islice

import torch
from hydra import compose, initialize_config_dir
from hydra.utils import instantiate
from torch import Tensor

from oar_lightning.common.paths import conf_dir
from oar_lightning.common.ranks import rank_correlation
from oar_lightning.credit.scorers import Entropy, OarG, OarP, OarPApproximate, ProbeSchedule, Scorer
from oar_lightning.credit.scorers.base import distinct_rows, scorable_rows
from oar_lightning.policy.pretrained import PretrainedPolicy
from oar_lightning.rollout import build_stage
from oar_lightning.types import Rollouts
from oar_lightning.wiring.settings import build_settings


def noisy(noise_std: float, num_draws: int) -> Callable[[int], Scorer]:
    """OAR-G by seed."""
    return lambda seed: OarG(noise_std=noise_std, num_draws=num_draws, seed=seed)


SCORERS: dict[str, Callable[[int], Scorer]] = {
    "entropy": lambda seed: Entropy(),
    "OAR-P": lambda seed: OarP(),
    "OAR-P, approximate": lambda seed: OarPApproximate(),
    "OAR-G, `answer_joint`": lambda seed: OarG(ProbeSchedule("answer_joint"), seed=seed),
    **{
        f"OAR-G, noise {std:g}, {draws} draw{'s' * (draws > 1)}": noisy(std, draws)
        for std in (1e-3, 1e-2, 1e-1)
        for draws in (1, 8)
    },
}
PROBLEMS, SAMPLES = 4, 6


def sampled() -> Rollouts:
    """Different completions of the built-in policy that state an answer."""
    with initialize_config_dir(str(conf_dir()), version_base="1.3"):
        cfg = compose("config", ["task=score"])
    settings, policy = build_settings(cfg), PretrainedPolicy("chain").load()
    prompt = instantiate(cfg.data.prompt, tokenizer=policy.tokenizer)
    stage = build_stage(policy, prompt, settings.answer, settings.rewards)
    problems = list(islice(next(iter(settings.eval_sets.values())), PROBLEMS))
    rollouts = stage(policy.model, problems, SAMPLES, settings.method.sampling, list(range(PROBLEMS)))
    rows = scorable_rows(rollouts)
    part = rollouts.select(rows[distinct_rows(rollouts, rows)[0]])
    return dataclasses.replace(part, prediction_states=None)  # they are the float32 policy's


def agreement(a: Tensor, b: Tensor, rollouts: Rollouts) -> float:
    """Mean Spearman correlation per completion."""
    return statistics.mean(
        rank_correlation(a[i, m].numpy(), b[i, m].float().numpy()) for i, m in enumerate(rollouts.reasoning_mask)
    )


def main() -> None:
    torch.set_num_threads(1)
    rollouts = sampled()
    full, half = PretrainedPolicy("chain").load().model, PretrainedPolicy("chain", dtype="bfloat16").load().model
    sys.stdout.write(
        f"{len(rollouts)} completions\n\n| scorer | bf16-true | bf16-mixed | float32, another draw |\n|---|---|---|---|\n"
    )
    for name, scorer in SCORERS.items():
        expected = scorer(0)(full, rollouts)
        with torch.autocast("cpu", torch.bfloat16):
            mixed = scorer(0)(full, rollouts)
        found = [scorer(0)(half, rollouts), mixed, *([scorer(1)(full, rollouts)] if "OAR-G" in name else [])]
        numbers = [f"{agreement(expected, other, rollouts):.2f}" for other in found]
        sys.stdout.write(f"| {' | '.join([name, *numbers, *['-'] * (3 - len(numbers))])} |\n")


if __name__ == "__main__":
    main()
