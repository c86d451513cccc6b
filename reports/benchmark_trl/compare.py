"""Seconds of a training step here and in TRL's GRPOTrainer, taking turns.

    python reports/benchmark_trl/compare.py --trl-python .venv-trl/bin/python

README.md says how to make TRL's environment and what is compared; this writes it, with results.json beside it.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import platform
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

import page  # noqa: E402  (this folder is no package)

from oar_lightning.benchmark.machine_load import Load, is_quiet  # noqa: E402

TRL_VERSION = "1.16.0"
ROUNDS = {"tiny": 16, "wide": 4}
TRIES = 5
"""A step that was not quiet is repeated until there are so many tries; the quietest of them counts."""

TITLES = {
    "tiny": "The built-in policy and task: 32 problems x 8 completions of at most 80 tokens, ended by EOS",
    "wide": "Random weights in the shape of `conf/benchmark/wide.yaml`: 4 prompts of 128 tokens x 8 completions of 256, no EOS",
}
SWITCH = {"TRANSFORMERS_SDPA_FORCE_GQA": "1"}
"""What this project's command sets on a CPU: attention with fewer keys than queries does not repeat its keys."""

TRL_VARIANTS: dict[str, dict[str, Any]] = {
    "trl_whole": {"accumulation": 1, "compile": False, "environment": {}},
    "trl_quarters": {"accumulation": 4, "compile": False, "environment": {}},
    "trl_whole_switch": {"accumulation": 1, "compile": False, "environment": SWITCH},
    "trl_quarters_switch": {"accumulation": 4, "compile": False, "environment": SWITCH},
    "trl_compiled": {"accumulation": 4, "compile": True, "environment": SWITCH},
    "trl_compiled_whole": {"accumulation": 1, "compile": True, "environment": SWITCH},
}
CONTESTANTS = {
    "trl_whole": "TRL GRPO, one batch",
    "trl_quarters": "TRL GRPO, 4 micro-batches",
    "trl_whole_switch": "TRL GRPO, one batch, attention switch",
    "trl_quarters_switch": "TRL GRPO, 4 micro-batches, attention switch",
    "trl_compiled": "TRL GRPO, 4 micro-batches, attention switch, torch_compile",
    "trl_compiled_whole": "TRL GRPO, one batch, attention switch, torch_compile",
    "grpo": "GRPO here",
    "oar_g": "OAR-G here",
}
MAKE_ENVIRONMENT = f"""make one with
  python3 -m venv .venv-trl
  .venv-trl/bin/pip install -c constraints.txt torch==2.13.0
  .venv-trl/bin/pip install -c constraints.txt trl=={TRL_VERSION}
and give --trl-python .venv-trl/bin/python"""


class ChildFailed(Exception):
    """A side ended before its time."""


@dataclass
class Child:
    """One contestant's process; `step` gives it a turn and waits for what it reports."""

    name: str
    process: subprocess.Popen[str]
    errors: Path

    @classmethod
    def start(cls, name: str, command: Sequence[str], folder: Path, environment: dict[str, str]) -> Child:
        errors = folder / f"{name}.log"
        with errors.open("w") as stream:
            process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=stream,
                text=True,
                env=environment,
                start_new_session=True,  # Ctrl-C is the driver's, which ends the children
            )
        return cls(name, process, errors)

    def read(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            tail = "\n".join(self.errors.read_text(errors="replace").splitlines()[-30:])
            raise ChildFailed(f"{self.name} ended early; the end of what it said:\n{tail}")
        return json.loads(line)

    def step(self, order: str = "go") -> dict[str, Any]:
        assert self.process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # read() says why it is gone
            self.process.stdin.write(f"{order}\n")
            self.process.stdin.flush()
        return self.read()

    def __enter__(self) -> Child:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        """End it with all that it started: a group of its own."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)  # noqa: T201


def check_trl(python: str) -> str | None:
    """What is wrong with TRL's environment, or None."""
    ask = [python, "-c", "import importlib.metadata as m; print(m.version('trl'), m.version('torch'))"]
    try:
        answer = subprocess.run(ask, capture_output=True, text=True, timeout=60)
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"{python} cannot be run ({error})"
    if answer.returncode:
        return f"{python} has no trl ({(answer.stderr.strip().splitlines() or ['no message'])[-1]})"
    found = answer.stdout.split()[0]
    return None if found == TRL_VERSION else f"{python} has trl {found}, the comparison is with {TRL_VERSION}"


def arguments(given: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Seconds of a training step here and in TRL's GRPOTrainer, taking turns.")
    parser.add_argument("--trl-python", required=True, metavar="PYTHON", help="Python of an environment with TRL (README.md)")
    parser.add_argument("--settings", nargs="+", choices=list(ROUNDS), default=list(ROUNDS), metavar="|".join(ROUNDS))
    parser.add_argument("--rounds", type=int, help=f"counted steps of each contestant (default: {ROUNDS})")
    parser.add_argument("--warmup", type=int, default=2, help="steps before them (default: 2)")
    parser.add_argument("--threads", type=int, default=2, help="torch threads of each process (default: 2)")
    parser.add_argument(
        "--patience", type=float, default=600.0, help="seconds to wait in all for a quiet machine (default: 600)"
    )
    parser.add_argument("--output", type=Path, default=HERE, help="folder of README.md and results.json (default: this one)")
    args = parser.parse_args(given)
    for name, lowest in (("rounds", 1), ("warmup", 1), ("threads", 1)):
        value = getattr(args, name)
        if value is not None and value < lowest:
            parser.error(f"--{name} must be >= {lowest}, got {value}")
    if (wrong := check_trl(args.trl_python)) is not None:
        parser.error(f"--trl-python: {wrong}; {MAKE_ENVIRONMENT}")
    return args


def write_job(setting: str, folder: Path, steps: int, threads: int) -> dict[str, Any]:
    """Weights, prompts and conditions of both sides as files in `folder`; returns what job.json holds."""
    from hydra.utils import instantiate
    from our_side import compose_config

    shape = None
    overrides = ["logger=none", "schedule.name=constant_with_warmup"]
    if setting == "wide":
        preset = compose_config(["task=benchmark", "benchmark=wide"]).benchmark
        shape = {k: v for k, v in preset.shape.items() if k != "_target_"}
        overrides += [f"update.problems={shape['prompts']}", f"update.group_size={shape['group_size']}"]
        overrides += [f"rollout.max_new_tokens={shape['completion']}"]
    cfg = compose_config(overrides)
    count = int(cfg["update"].problems) * (steps + 2)  # loaders read ahead
    rows = _built_in(cfg, folder, count) if shape is None else _random(shape, folder, steps + 2)
    (folder / "prompts.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    optimizer = instantiate(cfg.optimizer).keywords
    job = {
        "folder": str(folder),
        "weights": str(folder / "weights"),
        "prompts": str(folder / "prompts.jsonl"),
        "judge": "answer" if shape is None else "alternating",
        "shape": shape,
        "vocab_size": shape and shape["vocab_size"],
        "overrides": overrides,
        "problems": int(cfg["update"].problems),
        "group_size": int(cfg["update"].group_size),
        "max_new_tokens": int(cfg.rollout.max_new_tokens),
        "optimizer": {**optimizer, "betas": list(optimizer["betas"])},
        "warmup_steps": int(cfg.schedule.warmup_steps),
        "max_grad_norm": float(cfg.trainer.gradient_clip_val),
        "threads": threads,
        "steps": steps,
        "trl_variants": TRL_VARIANTS,
    }
    (folder / "job.json").write_text(json.dumps(job), encoding="utf-8")
    return job


def _built_in(cfg: Any, folder: Path, count: int) -> list[dict[str, str]]:
    """The built-in policy's files, and the first problems of the training stream as prompts."""
    from hydra.utils import instantiate

    from oar_lightning.data.stream import ProblemStream
    from oar_lightning.policy.pretrained import PretrainedPolicy
    from oar_lightning.wiring.settings import build_settings

    settings = build_settings(cfg)
    assert settings.train is not None
    assert isinstance(settings.policy, PretrainedPolicy)
    shutil.copytree(settings.policy.location(), folder / "weights")
    prompt = instantiate(cfg.data.prompt)
    return [{"prompt": prompt.render(p), "answer": p.answer} for p in ProblemStream(settings.train, int(cfg.seed)).take(count)]


def _random(shape: dict[str, Any], folder: Path, batches: int) -> list[dict[str, str]]:
    """Random weights, and random numbers as prompts."""
    import torch

    from oar_lightning.benchmark import RandomShape, RandomWorkload
    from oar_lightning.common.randomness import generator

    RandomWorkload(RandomShape(**shape), torch.device("cpu")).policy.model.save_pretrained(folder / "weights")
    size = (batches * shape["prompts"], shape["prompt"])
    ids = torch.randint(1, shape["vocab_size"], size, generator=generator("benchmark_trl"))
    return [{"prompt": " ".join(map(str, row)), "answer": ""} for row in ids.tolist()]


@contextlib.contextmanager
def children(names: Sequence[str], trl_python: str, folder: Path, threads: int) -> Iterator[dict[str, Child]]:
    """A process for each contestant, loaded one after the other; all of them end with the block."""
    environment = os.environ | {
        "OMP_NUM_THREADS": str(threads),
        "GOMP_SPINCOUNT": "20000",  # as oar_lightning sets it: threads that wait long sleep instead of spinning
        "TOKENIZERS_PARALLELISM": "false",
        "HF_HUB_OFFLINE": "1",
    }
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, [str(HERE.parents[1]), os.environ.get("PYTHONPATH")]))
    theirs = {k: v for k, v in environment.items() if k != "PYTHONPATH"}
    with contextlib.ExitStack() as stack:
        out = {}
        for name in names:
            ours = name in page.OURS
            python, script = (sys.executable, "our_side.py") if ours else (trl_python, "trl_side.py")
            command = [python, str(HERE / script), str(folder / "job.json"), name]
            variables = environment | SWITCH if ours else theirs | TRL_VARIANTS[name]["environment"]
            out[name] = stack.enter_context(Child.start(name, command, folder, variables))
        yield out


def measure(setting: str, trl_python: str, rounds: int, warmup: int, threads: int, patience: float) -> dict[str, Any]:
    """All rounds of a setting; the results as results.json holds them. Each round begins with another contestant."""
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        job = write_job(setting, folder, warmup + TRIES * rounds, threads)
        with children([*CONTESTANTS], trl_python, folder, threads) as running:
            facts = {name: child.read() for name, child in running.items()}
            check_equal(facts)
            say(f"{setting}: {len(running)} contestants are ready")
            steps: dict[str, list[dict[str, Any]]] = {name: [] for name in running}
            tries = 0
            for number in range(warmup + rounds):
                start = number % len(running)
                for name in [*running][start:] + [*running][:start]:
                    what = f"{setting}, round {number + 1}/{warmup + rounds}, {CONTESTANTS[name]}"
                    if number < warmup:
                        say(f"{what} (warm-up): {running[name].step()['seconds']:.2f} s")
                        continue
                    made = quiet_step(running[name], what, patience)
                    patience -= sum(report.pop("waited") for report in made)
                    tries += len(made)
                    steps[name].append(min(made, key=lambda report: report["others"] or 0.0))
    return {
        "title": TITLES[setting],
        "machine": f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores",
        "rounds": rounds,
        "warmup": warmup,
        "repeated": tries - rounds * len(CONTESTANTS),
        "completions": job["problems"] * job["group_size"],
        "contestants": {
            name: {"title": title, "facts": facts[name], "steps": steps[name]} for name, title in CONTESTANTS.items()
        },
    }


def quiet_step(child: Child, what: str, patience: float) -> list[dict[str, Any]]:
    """Steps of a contestant until one was quiet, at most `TRIES`. What each reports, and the share that `others` used."""
    made: list[dict[str, Any]] = []
    while len(made) < TRIES:
        waited = wait_for_quiet(patience)
        patience -= waited
        load = Load(child.process.pid)
        report = child.step()
        others = load.others()
        made.append(report | {"others": others, "waited": waited})
        if is_quiet(others):
            say(f"{what}: {report['seconds']:.2f} s")
            break
        say(f"{what}: {report['seconds']:.2f} s, of which others used {100 * (others or 0):.0f} % of the cores; repeated")
    return made


def wait_for_quiet(patience: float) -> float:
    """Until the machine is quiet, or for `patience` seconds; returns how long it took. Every contestant is blocked then."""
    started, told = time.monotonic(), False
    while (waited := time.monotonic() - started) < patience:
        load = Load(os.getpid())
        time.sleep(1.0)
        if is_quiet(load.others()):
            break
        if not told:
            say("something else uses the machine; waiting for it to end (--patience)")
            told = True
    return waited


def check_equal(facts: dict[str, dict[str, Any]]) -> None:
    """Raises: ChildFailed: where the sides differ in what they must share."""
    for key in ("threads", "torch", "transformers", "parameters"):
        values = {name: fact[key] for name, fact in facts.items()}
        if len(set(values.values())) > 1:
            raise ChildFailed(f"the sides differ in {key}: {values}; install TRL's environment with -c constraints.txt")


def read_results(folder: Path) -> dict[str, Any]:
    """Those of earlier measurements, by setting."""
    file = folder / "results.json"
    return json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}


def write_results(folder: Path, results: Mapping[str, Any], order: Sequence[str]) -> dict[str, Any]:
    """Write and return them in this order."""
    ordered = {name: results[name] for name in order if name in results}
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "results.json").write_text(json.dumps(ordered, indent=1) + "\n", encoding="utf-8")
    return ordered


def main() -> int:
    args = arguments()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the children end, too
    results = read_results(args.output)
    try:
        for setting in args.settings:
            rounds = args.rounds or ROUNDS[setting]
            results[setting] = measure(setting, args.trl_python, rounds, args.warmup, args.threads, args.patience)
            print(page.plain(page.step_table(setting, results[setting])))  # noqa: T201
            print(page.plain(page.part_table(results[setting])))  # noqa: T201
            results = write_results(args.output, results, list(ROUNDS))
            (args.output / "README.md").write_text(page.readme(results), encoding="utf-8")
    except ChildFailed as error:
        say(str(error))
        return 1
    except KeyboardInterrupt:
        say("interrupted; settings that were finished are written")
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
