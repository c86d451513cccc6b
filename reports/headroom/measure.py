"""Signal and noise of the policy gradient under different credit, on a fixed policy: seconds instead of training runs.

    python reports/headroom/measure.py NAME [OVERRIDE ...] [--blocks 8] [--batches 8] [--methods uniform oracle ...]

samples `blocks * batches` batches of rollouts from the configured policy and takes each batch's gradient under every method
of METHODS, on the same completions (`oar_lightning.lab.gradients`). Overrides are those of `python -m oar_lightning`. Each
block's sums are kept in CACHE/NAME (HEADROOM_CACHE, by default in the system's temporary folder); a block that is there with
all the methods asked for is not measured again. The result goes to results.json, the table to standard output.

The signal shares are defined in `oar_lightning.lab.gradients.quality`. At equal learning rate progress goes with the root of
the one in Adam's scale, at each method's best rate with the share itself. A share says how much of a step is repeatable, not
that it is right: whether credit leads the right way is for training runs to show.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

from oar_lightning.wiring.device import seed_everything, set_threads

os.environ.setdefault("TRANSFORMERS_SDPA_FORCE_GQA", "1")  # as `python -m oar_lightning` sets them
os.environ.setdefault("GOMP_SPINCOUNT", "20000")

import torch
from hydra import compose, initialize_config_dir
from hydra.utils import instantiate

from oar_lightning.common.markdown import markdown
from oar_lightning.common.paths import conf_dir
from oar_lightning.credit.gates import BilevelGate
from oar_lightning.credit.scorers import as_scorer
from oar_lightning.lab.gradients import Arm, Block, Coordinates, GradientSums, gradient_quality, sample_block
from oar_lightning.policy.pretrained import PretrainedPolicy
from oar_lightning.policy.token_budget import TokenBudget
from oar_lightning.rollout import build_stage
from oar_lightning.training.settings import Settings
from oar_lightning.wiring.settings import build_settings

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
    arms: dict[str, Arm]


def set_up(overrides: list[str], methods: list[str]) -> Setup:
    with initialize_config_dir(str(conf_dir()), version_base="1.3"):
        cfg = compose("config", overrides)
        arms = {
            m: Arm(as_scorer(instantiate(compose("config", [*overrides, *METHODS[m][0]]).scorer)), METHODS[m][1])
            for m in methods
        }
    settings = build_settings(cfg)
    seed_everything(0)
    assert isinstance(settings.policy, PretrainedPolicy)
    loaded = settings.policy.load()
    prompt = instantiate(cfg.data.prompt, tokenizer=loaded.tokenizer)
    return Setup(loaded.model, build_stage(loaded, prompt, settings.answer, settings.rewards), settings, arms)


def block_of(setup: Setup, folder: Path, number: int, batches: int, name: str) -> Block:
    """A block from its file, or measured and written there."""
    path = folder / f"{number}.pt"
    if path.exists():
        stored = torch.load(path)
        known = Block(GradientSums(**stored["sums"]), stored["facts"])
        if set(setup.arms) <= set(known.sums.names):
            return Block(known.sums.select(list(setup.arms)), known.facts)

    sys.stderr.write(f"{name}: block {number + 1}\n")
    assert setup.settings.train is not None
    budget, coordinates = TokenBudget("measure", None), Coordinates.of(setup.model)
    block = sample_block(
        setup.model, setup.stage, setup.settings.method, setup.settings.train, setup.arms, number, batches, budget,
        coordinates,
    )  # fmt: skip
    torch.save({"sums": vars(block.sums), "facts": block.facts}, path.with_suffix(".part"))
    path.with_suffix(".part").rename(path)
    return block


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

    set_threads(1)
    setup = set_up(options.overrides, options.methods)
    folder = CACHE / options.name
    folder.mkdir(parents=True, exist_ok=True)
    blocks = [block_of(setup, folder, number, options.batches, options.name) for number in range(options.blocks)]
    facts = {k: float(torch.tensor([v for b in blocks for v in b.facts[k]]).mean()) for k in blocks[0].facts}
    update = setup.settings.method.update
    result = {
        "overrides": options.overrides,
        "batches": sum(b.sums.batches for b in blocks),
        "problems": update.problems,
        "group_size": update.group_size,
        "facts": facts,
        "methods": {
            name: {key: [found[key].mean, found[key].low, found[key].high] for key in ("raw", "adam")}
            for name, found in gradient_quality([b.sums for b in blocks]).items()
        },
    }
    stored = HERE / "results.json"
    results = json.loads(stored.read_text(encoding="utf-8")) if stored.exists() else {}
    results[options.name] = result
    stored.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    sys.stdout.write(f"{options.name}: {table(result)}\n")


if __name__ == "__main__":
    main()
