"""Signal and noise of the policy gradient under different credit, on a fixed policy: seconds instead of training runs.

    python reports/headroom/measure.py NAME [OVERRIDE ...] [--blocks 8] [--batches 8] [--methods uniform oracle ...]

samples `blocks * batches` batches of rollouts from the configured policy and takes each batch's gradient under every method
of METHODS, on the same completions. Overrides are those of `python -m oar_lightning`. Each block's sums are kept in
CACHE/NAME (HEADROOM_CACHE, by default in the system's temporary folder); a block that is there with all the methods asked
for is not measured again. The result goes to results.json, the table to standard output.

What is reported is the signal share of one batch's gradient g, over all coordinates j:

    raw   |E g|^2 / E |g|^2                 adam   mean_j (E g_j)^2 / E g_j^2

with (E g)^2 from products of different batches, so that noise does not count as signal. The second is scaled as Adam scales
its steps: at equal learning rate progress goes with its root, at each method's best rate with the share itself. A share says
how much of a step is repeatable, not that it is right: whether credit leads the right way is for training runs to show.
Intervals: jackknife over blocks, 95 %.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from oar_lightning.wiring.device import seed_everything, set_threads
from oar_lightning.wiring.policy import build_stage

os.environ.setdefault("TRANSFORMERS_SDPA_FORCE_GQA", "1")  # as `python -m oar_lightning` sets them
os.environ.setdefault("GOMP_SPINCOUNT", "20000")

import torch
from hydra import compose, initialize_config_dir
from hydra.utils import instantiate
from torch import Tensor

from oar_lightning.common.markdown import markdown
from oar_lightning.common.paths import conf_dir
from oar_lightning.common.randomness import derive_seed
from oar_lightning.credit.assign import assign_credit
from oar_lightning.credit.gates import BilevelGate
from oar_lightning.credit.scorers import Scorer, as_scorer
from oar_lightning.data.stream import ProblemStream
from oar_lightning.objective.advantage import group_advantages
from oar_lightning.objective.loss import Denominators, LossInputs, policy_loss
from oar_lightning.policy.language_model import token_logprobs
from oar_lightning.policy.pretrained import PretrainedPolicy
from oar_lightning.types import Rollouts
from oar_lightning.wiring.settings import Settings, build_settings

HERE = Path(__file__).parent
CACHE = Path(os.environ.get("HEADROOM_CACHE", Path(tempfile.gettempdir()) / "headroom"))
SHARP = BilevelGate(threshold="absolute", tau=0.5)
PAPER = BilevelGate()
METHODS: dict[str, tuple[list[str], BilevelGate]] = {
    "uniform": (["scorer=uniform"], PAPER),
    "oracle": (["scorer=oracle"], SHARP),
    "oracle, paper's gate": (["scorer=oracle"], PAPER),
    "oracle, results": (["scorer=oracle", "scorer.locate.which=results"], SHARP),
    "oracle, all causal": (["scorer=oracle", "scorer.locate.which=causal"], SHARP),
    "inverted oracle": (["scorer=inverted", "scorer@scorer.inner=oracle"], SHARP),
    "random": (["scorer=random"], PAPER),
    "entropy": (["scorer=entropy"], PAPER),
    "oar_g": (["scorer=oar_g"], PAPER),
    "oar_p": (["scorer=oar_p"], PAPER),
}


class Setup(NamedTuple):
    model: Any
    stage: Any
    settings: Settings
    scorers: dict[str, tuple[Scorer, BilevelGate]]


class Sums(NamedTuple):
    """Sums over batches of one method's gradient g, coordinate by coordinate."""

    g: Tensor
    g_squared: Tensor


def set_up(overrides: list[str], methods: list[str]) -> Setup:
    with initialize_config_dir(str(conf_dir()), version_base="1.3"):
        cfg = compose("config", overrides)
        chosen = {
            m: (as_scorer(instantiate(compose("config", [*overrides, *METHODS[m][0]]).scorer)), METHODS[m][1]) for m in methods
        }
    settings = build_settings(cfg)
    seed_everything(0)
    assert isinstance(settings.policy, PretrainedPolicy)
    loaded = settings.policy.load()
    prompt = instantiate(cfg.data.prompt, tokenizer=loaded.tokenizer)
    return Setup(loaded.model, build_stage(loaded, prompt, settings.answer, settings.rewards), settings, chosen)


def gradients(setup: Setup, rollouts: Rollouts) -> dict[str, Tensor]:
    """One batch's flat gradient by method."""
    model, settings = setup.model, setup.settings
    parameters = [p for p in model.parameters() if p.requires_grad]
    mask, weight = rollouts.response_mask, setup.stage.rewards.weight_vector()
    over = Denominators.of(mask, settings.method.sampling.max_new_tokens)
    logprobs = token_logprobs(model, rollouts.token_ids, rollouts.attention_mask, mask)[0]

    advantages = group_advantages(rollouts.reward_terms, weight, rollouts.group_size, settings.method.advantage)

    def gradient(token_advantages: Tensor) -> Tensor:
        inputs = LossInputs(logprobs, logprobs.detach(), token_advantages, mask, over)
        value = policy_loss(inputs, settings.method.loss).loss
        parts = torch.autograd.grad(value, parameters, retain_graph=True, allow_unused=True)
        return torch.cat([torch.zeros(p.numel()) if g is None else g.flatten() for p, g in zip(parameters, parts, strict=True)])

    found = {}
    for name, (scorer, gate) in setup.scorers.items():
        credit = assign_credit(model, dataclasses.replace(rollouts, advantages=advantages), scorer, gate, everything=True)
        found[name] = gradient(credit.advantages)
    return found


def measure_block(setup: Setup, block: int, batches: int, say: Callable[[str], None]) -> dict[str, Any]:
    update = setup.settings.method.update
    assert setup.settings.train is not None
    stream = ProblemStream(setup.settings.train, 0)
    stream.take(block * batches * update.problems)
    sums: dict[str, Sums] = {}
    facts: dict[str, list[float]] = {"reward": [], "tokens": [], "silent groups": []}
    for batch in range(batches):
        say(f"block {block + 1}, batch {batch + 1} of {batches}")
        problems = stream.take(update.problems)
        seeds = [derive_seed(0, "headroom", block, batch, i) for i in range(len(problems))]
        rollouts = setup.stage(setup.model, problems, update.group_size, setup.settings.method.sampling, seeds, batch)
        facts["reward"].append(float(rollouts.rewards.mean()))
        facts["tokens"].append(float(rollouts.response_mask.sum(1).float().mean()))
        groups = rollouts.rewards.view(-1, update.group_size)
        facts["silent groups"].append(float((groups == groups[:, :1]).all(1).float().mean()))
        for name, g in gradients(setup, rollouts).items():
            terms = Sums(g, g.square())
            sums[name] = Sums(*(a + b for a, b in zip(sums[name], terms, strict=True))) if name in sums else terms
    return {"batches": batches, "sums": {k: tuple(v) for k, v in sums.items()}, "facts": facts}


def statistics(blocks: list[dict[str, Any]]) -> dict[str, dict[str, float]]:
    """The signal shares of each method over the given blocks."""
    n = sum(b["batches"] for b in blocks)
    out = {}
    for name in blocks[0]["sums"]:
        g, g_squared = (sum(b["sums"][name][i] for b in blocks) for i in range(2))
        signal, size = (g.square() - g_squared) / (n * (n - 1)), g_squared / n
        seen = size > 0  # embeddings of tokens that no text holds have no gradient
        out[name] = {"raw": float(signal.sum() / size.sum()), "adam": float((signal[seen] / size[seen]).mean())}
    return out


def jackknife(blocks: list[dict[str, Any]]) -> dict[str, dict[str, list[float]]]:
    """Each statistic with the ends of its 95 % interval."""
    whole = statistics(blocks)
    without = [statistics(blocks[:i] + blocks[i + 1 :]) for i in range(len(blocks))]
    n = len(blocks)
    out: dict[str, dict[str, list[float]]] = {}
    for name, values in whole.items():
        out[name] = {}
        for key, value in values.items():
            left = torch.tensor([w[name][key] for w in without], dtype=torch.float64)
            error = float(((n - 1) / n * (left - left.mean()).square().sum()).sqrt())
            out[name][key] = [value, value - 1.96 * error, value + 1.96 * error]
    return out


def table(result: dict[str, Any]) -> str:
    rows = [["credit", "signal share, raw, %", "signal share, Adam's scale, %"]]
    for name, found in result["methods"].items():
        rows.append(
            [name, *(f"{100 * v:.1f} [{100 * low:.1f}, {100 * high:.1f}]" for v, low, high in (found["raw"], found["adam"]))]
        )
    facts = ", ".join(f"{k} {v:.3g}" for k, v in result["facts"].items())
    return f"{result['batches']} batches of {result['problems']} x {result['group_size']}: {facts}\n\n{markdown(rows)}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name", help="of the variant")
    parser.add_argument("overrides", nargs="*", help="as for `python -m oar_lightning`, e.g. data.chain.asides=3")
    parser.add_argument("--blocks", type=int, default=8)
    parser.add_argument("--batches", type=int, default=8, help="per block")
    parser.add_argument("--methods", nargs="*", default=[m for m in METHODS if m != "oar_p"], choices=METHODS)
    options = parser.parse_args()

    def say(text: str) -> None:
        sys.stderr.write(f"\r{options.name}: {text}   ")

    set_threads(1)
    setup = set_up(options.overrides, options.methods)
    folder = CACHE / options.name
    folder.mkdir(parents=True, exist_ok=True)
    blocks: list[dict[str, Any]] = []
    for number in range(options.blocks):
        path = folder / f"{number}.pt"
        known = torch.load(path) if path.exists() else {"sums": {}}
        if not set(options.methods) <= set(known["sums"]):
            known = measure_block(setup, number, options.batches, say)
            torch.save(known, path.with_suffix(".part"))
            path.with_suffix(".part").rename(path)
        blocks.append(known | {"sums": {m: known["sums"][m] for m in options.methods}})
    facts = {k: float(torch.tensor([v for b in blocks for v in b["facts"][k]]).mean()) for k in blocks[0]["facts"]}
    update = setup.settings.method.update
    result = {
        "overrides": options.overrides,
        "batches": sum(b["batches"] for b in blocks),
        "problems": update.problems,
        "group_size": update.group_size,
        "facts": facts,
        "methods": jackknife(blocks),
    }
    stored = HERE / "results.json"
    results = json.loads(stored.read_text(encoding="utf-8")) if stored.exists() else {}
    results[options.name] = result
    stored.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    sys.stderr.write("\n")
    sys.stdout.write(f"{options.name}: {table(result)}\n")


if __name__ == "__main__":
    main()
