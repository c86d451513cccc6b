"""Tokens per second of this package's decoding loop and of vLLM's build for CPUs, taking turns.

    make .venv-vllm/.installed
    .venv-vllm/bin/python reports/vllm_cpu/measure.py [--rounds 3] [--settings graph wide large] [--busy]

writes results.json and the generated part of README.md beside this file; settings that are not asked for keep their results.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import json
import os
import platform
import signal
import statistics
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "benchmark_trl"))

from compare import TRIES, Child, ChildFailed, read_results, say, wait_for_quiet, write_results  # noqa: E402  (that folder is no package)

from oar_lightning.benchmark.machine_load import Load, is_quiet  # noqa: E402
from oar_lightning.common.markdown import fill, markdown  # noqa: E402

OWN = "own"
WAYS = {
    OWN: "decoding loop of this package (`engine=auto`)",
    "engine_eager": "`engine=vllm engine.enforce_eager=true`",
    "engine": "`engine=vllm`, compiled",
    "alone": "`vllm.LLM` alone, compiled, weights packed",
}
SENT = ("engine_eager", "engine")
"""The ways that are given the policy's weights before each call."""

DEFAULT, EXTRA = ("graph", "wide", "large"), ("large_bfloat16",)
CALLS = {1: 4, 16: 1, 256: 1}
"""Rows at once -> calls of a turn."""

WARM_ROWS = (1, 16, 32)
"""Of the calls that do not count. The first of them makes vLLM's model, and compiles it."""

ENVIRONMENT = {
    "GOMP_SPINCOUNT": "20000",  # as oar_lightning sets it
    "TRANSFORMERS_SDPA_FORCE_GQA": "1",
    "HF_HUB_OFFLINE": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "VLLM_LOGGING_LEVEL": "ERROR",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",  # `auto` would leave one core of two to vLLM's scheduler
}
Turn = Mapping[str, Any]
"""Of one turn: `seconds`, completion `tokens`, seconds of each call in which vLLM was given the `weights`, seconds of processor
time (`cpu`), the process's peak memory so far (`peak_mb`), the share of the cores that `others` used."""


def ways_of(setting: str) -> list[str]:
    """All ways; with the largest policy, where compiling takes longest and matters least, `engine=vllm` is not compiled."""
    return [name for name in WAYS if not (setting.startswith("large") and name == "engine")]


def order(rows: int, calls: int) -> str:
    return json.dumps({"rows": rows, "calls": calls})


def quiet_turns(child: Child, what: str, given: str, tries: int, patience: float) -> tuple[list[dict[str, Any]], float]:
    """Turns of a way until one was quiet, at most `tries`, and what is left of the patience: before a turn is repeated, a quiet
    machine is waited for."""
    made: list[dict[str, Any]] = []
    while True:
        load = Load(child.process.pid)
        report = child.step(given)
        made.append(report | {"others": load.others()})
        said = f"{what}: {report['tokens'] / report['seconds']:.0f} tokens/s"
        if is_quiet(made[-1]["others"]) or len(made) == tries:
            say(said)
            return made, patience
        say(f"{said}, while others used {100 * made[-1]['others']:.0f} % of the cores; repeated")
        patience -= wait_for_quiet(patience)


@contextlib.contextmanager
def children(setting: str, threads: int) -> Iterator[dict[str, Child]]:
    """A process for each way; all of them end with the block. What vLLM compiles is kept in a folder that ends with it, too."""
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        running = {}
        for name in ways_of(setting):
            caches = {"VLLM_CACHE_ROOT": str(folder / name), "TORCHINDUCTOR_CACHE_DIR": str(folder / name / "inductor")}
            environment = os.environ | ENVIRONMENT | caches | {"OMP_NUM_THREADS": str(threads)}
            command = [sys.executable, str(HERE / "ways.py"), name, setting, str(threads)]
            running[name] = stack.enter_context(Child.start(name, command, folder, environment))
        yield running


def measure(setting: str, rounds: int, threads: int, patience: float, busy: bool) -> dict[str, Any]:
    """All rounds of a setting; the results as results.json holds them. Each round begins with another way."""
    with children(setting, threads) as running:
        facts = {name: child.read() for name, child in running.items()}
        warm: dict[str, list[dict[str, Any]]] = {}
        for name, child in running.items():
            warm[name] = [child.step(order(rows, 1)) for rows in WARM_ROWS]
            seconds = ", ".join(f"{turn['seconds']:.2f} (processor {turn['cpu']:.2f})" for turn in warm[name])
            say(f"{setting}, warm-up, {WAYS[name]}: {seconds} s")
        turns: dict[str, dict[str, list[dict[str, Any]]]] = {name: {str(rows): [] for rows in CALLS} for name in running}
        tries = 0
        for number in range(rounds):
            start = number % len(running)
            for rows, calls in CALLS.items():
                for name in [*running][start:] + [*running][:start]:
                    what = f"{setting}, round {number + 1}/{rounds}, {count(rows)}, {WAYS[name]}"
                    most = 1 if busy else TRIES
                    made, patience = quiet_turns(running[name], what, order(rows, calls), most, patience)
                    tries += len(made)
                    turns[name][str(rows)].append(min(made, key=lambda report: report["others"] or 0.0))
    return {
        "machine": f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores",
        "rounds": rounds,
        "repeated": tries - rounds * len(running) * len(CALLS),
        "facts": facts[OWN],
        "ways": {name: {"first": warm[name][0]["seconds"], "turns": turns[name]} for name in running},
    }


def rates(turns: Sequence[Turn]) -> list[float]:
    return [turn["tokens"] / turn["seconds"] for turn in turns]


def ratios(turns: Sequence[Turn], own: Sequence[Turn]) -> list[float]:
    """Round by round: a round's turns of as many rows ran one after the other."""
    return [a / b for a, b in zip(rates(turns), rates(own), strict=True)]


def spread(values: Sequence[float], show: Callable[[float], str]) -> str:
    """Median and range."""
    return f"{show(statistics.median(values))} ({show(min(values))} to {show(max(values))})"


def rate_table(ways: Mapping[str, Mapping[str, Any]]) -> list[list[str]]:
    header = [
        "way",
        *(cell for rows in CALLS for cell in (f"tokens/s, {count(rows)}", "of the loop's")),
        "first call s",
        "peak MB",
    ]
    table = [header]
    for name, way in ways.items():
        cells = []
        for rows in map(str, CALLS):
            cells.append(spread(rates(way["turns"][rows]), "{:.0f}".format))
            relative = ratios(way["turns"][rows], ways[OWN]["turns"][rows])
            cells.append("1" if name == OWN else spread(relative, "{:.2f}".format))
        peak = max(turn["peak_mb"] for turns in way["turns"].values() for turn in turns)
        table.append([WAYS[name], *cells, f"{way['first']:.1f}", f"{peak:.0f}"])
    return table


def weight_table(ways: Mapping[str, Mapping[str, Any]]) -> list[list[str]]:
    """What giving vLLM the policy's weights takes: of a call, and what a call's rate would be without."""
    header = ["way", "weights, ms a call", *(f"tokens/s without, {count(rows)}" for rows in CALLS)]
    table = [header]
    for name in (name for name in SENT if name in ways):
        turns = ways[name]["turns"]
        milliseconds = [1000 * seconds for of_rows in turns.values() for turn in of_rows for seconds in turn["weights"]]
        without = [
            spread([turn["tokens"] / (turn["seconds"] - sum(turn["weights"])) for turn in turns[str(rows)]], "{:.0f}".format)
            for rows in CALLS
        ]
        table.append([WAYS[name], spread(milliseconds, "{:.1f}".format), *without])
    return table


def processor_table(ways: Mapping[str, Mapping[str, Any]]) -> list[list[str]]:
    """Tokens by processor time, which other processes hardly change; threads that wait for each other count in it, too."""
    table = [["way", *(f"tokens per processor second, {count(rows)}" for rows in CALLS)]]
    for name, way in ways.items():
        cells = [[turn["tokens"] / turn["cpu"] for turn in way["turns"][str(rows)]] for rows in CALLS]
        table.append([WAYS[name], *(spread(values, "{:.0f}".format) for values in cells)])
    return table


def count(rows: int) -> str:
    return f"{rows} row{'s' * (rows > 1)}"


def rounds_text(result: Mapping[str, Any]) -> str:
    turns = [turn for way in result["ways"].values() for of_rows in way["turns"].values() for turn in of_rows]
    text = f"{result['rounds']} rounds; {result['repeated']} turns did not count (not quiet)"
    unquiet = sum(not is_quiet(turn["others"]) for turn in turns)
    return text + (f"; **{unquiet} of the {len(turns)} turns that count were not quiet**." if unquiet else ".")


def section(setting: str, result: Mapping[str, Any]) -> str:
    facts = result["facts"]
    versions = ", ".join(f"{name} {facts[name]}" for name in ("vllm", "torch", "transformers", "python"))
    return f"""## `{setting}`
{facts["title"]}. Policy of {facts["parameters"] / 1e6:.2f} M parameters.
{result["machine"]}, {facts["threads"]} threads; {versions}. {rounds_text(result)}

{markdown(rate_table(result["ways"]))}

{markdown(weight_table(result["ways"]))}

{markdown(processor_table(result["ways"]))}
"""


def page(results: Mapping[str, Mapping[str, Any]]) -> str:
    """The generated part of README.md."""
    return "\n".join(section(setting, result) for setting, result in results.items())


def arguments(given: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--settings", nargs="+", choices=[*DEFAULT, *EXTRA], default=list(DEFAULT), metavar="|".join(DEFAULT + EXTRA)
    )
    parser.add_argument("--rounds", type=int, default=3, help="counted turns of each way at each number of rows (default: 3)")
    parser.add_argument("--threads", type=int, default=2, help="torch threads of each process (default: 2)")
    parser.add_argument(
        "--patience", type=float, default=600.0, help="seconds to wait in all for a quiet machine (default: 600)"
    )
    parser.add_argument(
        "--busy", action="store_true", help="neither wait for a quiet machine nor repeat turns; the page says so"
    )
    parser.add_argument("--output", type=Path, default=HERE, help="folder of README.md and results.json (default: this one)")
    args = parser.parse_args(given)
    if args.rounds < 1 or args.threads < 1:
        parser.error("--rounds and --threads must be >= 1")
    if importlib.util.find_spec("vllm") is None:
        parser.error("there is no vLLM in this environment: `make .venv-vllm/.installed`, and use .venv-vllm/bin/python")
    return args


def main() -> int:
    args = arguments()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the children end, too

    results = read_results(args.output)
    try:
        for setting in args.settings:
            results[setting] = measure(setting, args.rounds, args.threads, args.patience, args.busy)
            results = write_results(args.output, results, DEFAULT + EXTRA)
            fill(args.output / "README.md", page(results))
    except ChildFailed as error:
        say(str(error))
        return 1
    sys.stdout.write(page(results))
    return 0


if __name__ == "__main__":
    sys.exit(main())
