"""Runs the tests that need a GPU, and keeps how far its policies are from the CPU's.

    python reports/gpu/measure.py

runs `tests/system/test_gpu.py` and writes results.csv and the table of README.md beside this file; `--read FILE` takes the
JUnit file of a run that has been made.
"""

from __future__ import annotations

import argparse
import csv
import statistics
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

from oar_lightning.common.markdown import fill, markdown

HERE = Path(__file__).parent
COLUMNS = ("test", "case", "passed", "share")
KINDS = {
    "test_a_gpu_ends_with_the_policy_of_the_cpu": "a method, float32, GPU against CPU",
    "test_a_resumed_run_ends_with_the_policy_of_one_left_alone": "a resumed run against one left alone, GPU",
    "test_deepspeed_ends_with_the_policy_of_the_cpu": "DeepSpeed ZeRO on one GPU against CPU",
    "test_training_goes_on_where_a_cards_memory_runs_out": "a run whose memory is limited against one that has all",
}


def read(path: Path) -> list[dict[str, str]]:
    """A row for each test."""
    rows = []
    for case in ElementTree.parse(path).iter("testcase"):
        name, _, rest = case.attrib["name"].partition("[")
        shares = [prop.attrib["value"] for prop in case.iter("property") if prop.attrib["name"] == "share"]
        if case.find("skipped") is not None:
            continue
        passed = case.find("failure") is None and case.find("error") is None
        rows.append({"test": name, "case": rest.rstrip("]"), "passed": str(passed), "share": "".join(shares)})
    return sorted(rows, key=lambda row: (row["test"], row["case"]))


def table(rows: list[dict[str, str]]) -> str:
    lines = []
    for test, label in KINDS.items():
        own = [row for row in rows if row["test"] == test]
        shares = sorted((float(row["share"]), row["case"]) for row in own if row["share"])
        passed = sum(row["passed"] == "True" for row in own)
        largest = ", ".join(f"{share:.1e} ({case})" if share else f"0 ({case})" for share, case in shares[:-4:-1])
        median = f"{statistics.median(share for share, _ in shares):.1e}" if shares else "-"
        lines.append([label, f"{passed} of {len(own)}", median, largest or "-"])
    return markdown([["what is compared", "passed", "median", "largest"], *lines])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--read", type=Path, help="a JUnit file; without it the tests run")
    path = parser.parse_args().read
    if path is None:
        path = HERE / "junit.xml"
        path.unlink(missing_ok=True)
        tests = HERE.parents[1] / "tests" / "system" / "test_gpu.py"
        subprocess.run([sys.executable, "-m", "pytest", "-m", "slow", f"--junitxml={path}", str(tests)], check=False)
    rows = read(path) if path.exists() else []
    if not any(row["share"] for row in rows):
        sys.exit(f"{path}: no test of a GPU ran; it needs one that torch sees")
    with (HERE / "results.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    fill(HERE / "README.md", table(rows))


if __name__ == "__main__":
    main()
