"""What the studies of gradients share: methods of credit on one policy, and blocks of batches that are measured once."""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from oar_lightning.wiring.device import seed_everything, set_threads

os.environ.setdefault("TRANSFORMERS_SDPA_FORCE_GQA", "1")  # as `python -m oar_lightning` sets them
os.environ.setdefault("GOMP_SPINCOUNT", "20000")

import torch
from hydra import compose, initialize_config_dir
from hydra.utils import instantiate

from oar_lightning.common.markdown import fill
from oar_lightning.common.paths import conf_dir
from oar_lightning.credit.gates import BilevelGate
from oar_lightning.credit.scorers import as_scorer
from oar_lightning.lab.gradients import Arm, Block, Coordinates, GradientSums, sample_block
from oar_lightning.policy.pretrained import PretrainedPolicy
from oar_lightning.policy.token_budget import TokenBudget
from oar_lightning.rollout import build_stage
from oar_lightning.training.settings import Settings
from oar_lightning.wiring.settings import build_settings

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
    "shuffled": (["scorer=shuffled"], PAPER),
    "entropy": (["scorer=entropy"], PAPER),
    "oar_g": (["scorer=oar_g"], PAPER),
    "oar_g, sharp gate": (["scorer=oar_g"], SHARP),
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


def block_of(setup: Setup, folder: Path, number: int, batches: int, name: str, references: Sequence[str] = ()) -> Block:
    """A block from its file, or measured and written there; with products with the gradients of `references`."""
    path = folder / f"{number}.pt"
    if path.exists():
        stored = torch.load(path)
        known = Block(GradientSums(**stored["sums"]), stored["facts"])
        if set(setup.arms) <= set(known.sums.names) and set(references) <= set(known.sums.references):
            return Block(known.sums.select(list(setup.arms), references), known.facts)

    sys.stderr.write(f"{name}: block {number + 1}\n")
    assert setup.settings.train is not None
    budget, coordinates = TokenBudget("measure", None), Coordinates.of(setup.model)
    block = sample_block(
        setup.model, setup.stage, setup.settings.method, setup.settings.train, setup.arms, number, batches, budget,
        coordinates, references,
    )  # fmt: skip
    torch.save({"sums": vars(block.sums), "facts": block.facts}, path.with_suffix(".part"))
    path.with_suffix(".part").rename(path)
    return block


def study_page(
    folder: Path,
    description: str,
    titles: Mapping[str, str],
    measured: Callable[[str, Path | None], Any],
    table: Callable[[Any], str],
) -> None:
    """The command of a study with a table for each policy: measures the one that is named, and writes the page of all.

    Names that end in `_trained` are of another policy than the task's.
    """
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name", nargs="?", choices=list(titles), help="none: write the page alone")
    parser.add_argument("--policy", type=Path, help="folder of the policy; without it that of the task")
    options = parser.parse_args()
    stored = folder / "results.json"
    results = json.loads(stored.read_text(encoding="utf-8")) if stored.exists() else {}
    if options.name:
        if options.name.endswith("_trained") != (options.policy is not None):
            parser.error(f"{options.name}: --policy belongs to names that end in _trained, and only to them")
        set_threads(1)
        results[options.name] = measured(options.name, options.policy)
        stored.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    fill(
        folder / "README.md",
        "\n\n".join(f"## {title}\n{table(results[name])}" for name, title in titles.items() if name in results),
    )
