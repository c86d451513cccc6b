"""What a method of credit changes in the policy gradient: its size, its noise, its direction; batch by batch as in training.

    python reports/mechanism/measure.py asides                      # the policy that ships
    python reports/mechanism/measure.py asides_trained --policy DIR # another one, of the same task
    python reports/mechanism/measure.py                             # the page of what is measured

Blocks of batches are kept in HEADROOM_CACHE/mechanism (by default in the system's temporary folder); those that are there
are not measured again. Writes results.json and the tables of README.md.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent / "headroom"))

import torch  # noqa: E402
from blocks import CACHE, block_of, set_up, study_page  # noqa: E402  (that folder is no package)

from oar_lightning.common.markdown import markdown  # noqa: E402
from oar_lightning.lab.gradients import gradient_quality  # noqa: E402

BASE, PERFECT = "uniform", "oracle"
METHODS = ("uniform", "oar_g", "shuffled", "random", "oar_g, sharp gate", "oracle, paper's gate", "oracle")
TITLES = {
    "asides": "`asides`, the policy that ships",
    "asides_trained": "`asides`, after 160 updates of GRPO",
    "graph": "`graph`, the policy that ships",
    "graph_trained": "`graph`, after 160 updates of GRPO",
}
SIZES = {"asides": (8, 8), "graph": (8, 16)}
"""Task -> blocks, and batches of each."""
COLUMNS = {
    "variance": f"variance/{BASE}",
    "adam": "adam",
    "same_batch": f"same_batch/{BASE}",
    "adam_cosine": f"adam_cosine/{BASE}",
    "adam_cosine_oracle": f"adam_cosine/{PERFECT}",
}
"""Column -> statistic of `oar_lightning.lab.gradients`."""
HEADINGS = {
    "variance": "noise (variance), of GRPO's",
    "adam": "signal share in Adam's scale, %",
    "same_batch": "same batch: cosine with GRPO's",
    "adam_cosine": "means in Adam's scale: cosine with GRPO's",
    "adam_cosine_oracle": "with perfect credit's",
}
Found = Mapping[str, Mapping[str, Sequence[float]]]
"""Method -> column -> value, low, high."""


def measured(name: str, policy: Path | None) -> dict[str, Any]:
    """The statistics of all methods on the task of that name, with its shipped policy or another one."""
    task = name.split("_")[0]
    overrides = [f"+variant={task}", *([f"policy.name={policy.resolve()}"] if policy else [])]
    setup = set_up(overrides, list(METHODS))
    folder = CACHE / "mechanism" / name
    folder.mkdir(parents=True, exist_ok=True)
    count, batches = SIZES[task]
    blocks = [block_of(setup, folder, number, batches, name, (BASE, PERFECT)) for number in range(count)]
    quality = gradient_quality([block.sums for block in blocks])
    facts = {key: float(torch.tensor([v for b in blocks for v in b.facts[key]]).mean()) for key in blocks[0].facts}
    update = setup.settings.method.update
    methods = {}
    for method, found in quality.items():
        methods[method] = {key: [found[k].mean, found[k].low, found[k].high] for key, k in COLUMNS.items()}
    size = {"batches": count * batches, "problems": update.problems, "group_size": update.group_size}
    return {"facts": facts, "methods": methods, **size}


def table(result: Mapping[str, Any]) -> str:
    rows = [["credit", *HEADINGS.values()]]
    rows += [[f"`{name}`", *(cell(key, found.get(key)) for key in COLUMNS)] for name, found in result["methods"].items()]
    facts = result["facts"]
    head = (
        f"{result['batches']} batches of {result['problems']} problems x {result['group_size']} completions of "
        f"{facts['tokens']:.0f} tokens, of which {100 * facts['reward']:.0f} % are right."
    )
    return f"{head}\n\n{markdown(rows)}"


def cell(key: str, found: Sequence[float] | None) -> str:
    if found is None or found[0] != found[0]:
        return "-"
    scale, digits = (100, ".1f") if key == "adam" else (1, ".2f")
    value, low, high = (scale * number for number in found)
    return f"{value:{digits}}" if low == high or low != low else f"{value:{digits}} [{low:{digits}}, {high:{digits}}]"


if __name__ == "__main__":
    study_page(HERE, __doc__ or "", TITLES, measured, table)
