"""What a step of each method costs on `asides`: cost.json, processor seconds.

python reports/families/cost.py             # all methods, in turns
python reports/families/cost.py oar_g shear # these and GRPO; the others' figures are dropped: ratios are of one run
"""

from __future__ import annotations

import argparse
import json
import resource
import runpy
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace

HERE = Path(__file__).parent
families = SimpleNamespace(**runpy.run_path(str(HERE / "measure.py")))

SHORT, LONG = 2, 12
REPEATS = 3
CHEAP = [
    *("+variant=asides", "num_threads=1", "logger=none", "checkpoint_every_n_steps=0", "schedule.warmup_steps=1"),
    *("evaluation.every_n_steps=0", "evaluation.problems=1", "evaluation.samples=1", "evaluation.heatmap=false"),
]


def processor_seconds(arm: Sequence[str], steps: int) -> float:
    """Of a whole run. Unlike the seconds on a clock they do not count what else the machine does."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    with tempfile.TemporaryDirectory() as folder:
        settings = [*CHEAP, *arm, f"trainer.max_steps={steps}", f"output_root={folder}"]
        subprocess.run([sys.executable, "-m", "oar_lightning", *settings], check=True, capture_output=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def measure_cost(arms: Mapping[str, Sequence[str]]) -> dict[str, float]:
    found: dict[str, list[float]] = {name: [] for name in arms}
    for number in range(REPEATS):  # in turns, since the machine is shared
        for name, arm in arms.items():
            found[name].append((processor_seconds(arm, LONG) - processor_seconds(arm, SHORT)) / (LONG - SHORT))
            sys.stderr.write(f"{number + 1}/{REPEATS} {name:20} {found[name][-1]:.2f} s a step\n")
    return {name: round(statistics.median(seconds), 4) for name, seconds in found.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("methods", nargs="*", default=list(families.ARMS), metavar="METHOD")
    names = dict.fromkeys([families.BASELINE, *parser.parse_args().methods])
    found = measure_cost({name: families.ARMS[name] for name in names})
    (HERE / "cost.json").write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
