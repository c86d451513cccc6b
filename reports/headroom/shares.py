"""Signal and noise of the policy gradient under different credit, on a fixed policy: seconds instead of training runs.

    python reports/headroom/shares.py NAME [OVERRIDE ...] [--blocks 8] [--batches 8] [--methods uniform oracle ...]

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
import sys
from pathlib import Path
from typing import Any

import torch
from blocks import CACHE, METHODS, block_of, set_up

from oar_lightning.common.markdown import markdown
from oar_lightning.lab.gradients import gradient_quality
from oar_lightning.wiring.device import set_threads

HERE = Path(__file__).parent


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
    usual = [m for m in METHODS if m not in ("oar_p", "shuffled", "oar_g, sharp gate")]
    parser.add_argument("--methods", nargs="*", default=usual, choices=METHODS)
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
