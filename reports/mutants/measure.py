"""Do the tests notice faults? Cosmic Ray's mutants of the files that compute with numbers and text only.

    python reports/mutants/measure.py        (or `make mutants`, which installs cosmic-ray)

draws places in those files, stratified and seeded, one change for each, and runs the file's tests on each change in a temporary
copy of the checkout. It writes mutants.csv and the tables of README.md, or for another size or seed prints them; results so far
are in outputs/mutants/mutants.csv.
"""

from __future__ import annotations

import argparse
import csv
import difflib
import hashlib
import itertools
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

from oar_lightning.common.markdown import fill, markdown
from oar_lightning.common.wilson import wilson_bounds

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
FOUND = HERE / "mutants.csv"
SO_FAR = ROOT / "outputs" / "mutants" / "mutants.csv"

CREDIT, SCORERS = "tests/credit", "tests/credit/scorers"
GATES = (f"{CREDIT}/gates/test_base.py", f"{CREDIT}/test_metrics.py")
PURE: dict[str, tuple[str, ...]] = {
    "answers/equations.py": ("tests/answers/test_form.py",),
    "answers/form.py": (),
    "answers/formula.py": ("tests/answers/test_form.py",),
    "answers/numbers.py": ("tests/answers/test_form.py",),
    "answers/reward.py": (),
    "answers/span.py": (),
    "answers/spelling.py": ("tests/answers/test_form.py",),
    "answers/structure.py": ("tests/answers/test_form.py",),
    "answers/units.py": ("tests/answers/test_form.py",),
    "credit/assign.py": (),
    "credit/component.py": (f"{CREDIT}/test_assign.py", f"{SCORERS}/test_spro.py"),
    "credit/freedom.py": (),
    "credit/gates/base.py": (),
    "credit/gates/bilevel.py": GATES,
    "credit/gates/contrast.py": GATES,
    "credit/gates/direct.py": GATES,
    "credit/gates/select.py": GATES,
    "credit/gates/signed.py": GATES,
    "credit/hints.py": (),
    "credit/judges/budget.py": (),
    "credit/judges/critiques.py": (),
    "credit/located.py": (f"{SCORERS}/test_oracle.py", f"{SCORERS}/hindsight/test_actions.py"),
    "credit/metrics.py": (),
    "credit/scorers/base.py": (f"{CREDIT}/test_assign.py", f"{SCORERS}/test_spro.py", f"{SCORERS}/test_steps.py"),
    "credit/scorers/capo.py": (),
    "credit/scorers/forward_free/baseline.py": (),
    "credit/scorers/forward_free/confidence.py": (),
    "credit/scorers/forward_free/counting.py": (),
    "credit/scorers/forward_free/entropies.py": (),
    "credit/scorers/forward_free/phrases.py": (),
    "credit/scorers/forward_free/span_distances.py": (),
    "credit/scorers/oar_p/coarse.py": (f"{SCORERS}/oar_p/test_approximate.py",),
    "credit/scorers/oar_p/texts.py": (f"{SCORERS}/oar_p/test_approximate.py", f"{SCORERS}/oar_p/test_exact.py"),
    "credit/scorers/oracle.py": (),
    "credit/scorers/spro.py": (),
    "credit/scorers/steps.py": (),
    "credit/scorers/total_effect/recursion.py": (),
    "credit/segments.py": (),
    "credit/step_classes.py": (),
    "objective/advantage.py": (),
    "objective/diagnostics.py": (),
    "objective/entropy.py": (),
    "objective/loss.py": (),
    "objective/metric_sums.py": (),
    "rollout/assemble.py": (),
    "rollout/choice.py": ("tests/rollout/test_engines.py",),
    "rollout/sampling.py": (),
    "rollout/vllm_errors.py": (),
}
"""Files that neither run a model nor start processes, and the tests of each beside those that mirror it."""
OF_ALL = ("tests/test_dataclasses.py", "tests/wiring/test_class_defaults.py", "tests/common/test_ranges.py")
"""Tests that look at all files: of frozen dataclasses, of defaults, of `checked` ranges. They come last."""

SIZE, SEED = 200, 0
LIBRARIES = (
    "torch",
    "lightning.pytorch",
    "transformers",
    "peft",
    "mlflow",
    "hydra",
    "math_verify",
    "ot",
    "beartype",
    "hypothesis",
)
"""The larger ones of what the tests import; these import most others. Imported once for all mutants."""
KILLED, SURVIVED, TIMEOUT = "killed", "survived", "timeout"


@dataclass(frozen=True)
class Place:
    """Where a file can be changed, and the operators of Cosmic Ray that can do so, each with its running number there."""

    file: str
    line: int
    changes: tuple[tuple[str, int], ...]


@dataclass(frozen=True)
class Mutant:
    """One row of mutants.csv. `source` tells the file's text by its hash: a result holds for that text only."""

    file: str
    line: int
    operator: str
    occurrence: int
    source: str
    diff: str
    result: str = ""
    seconds: str = ""

    @property
    def key(self) -> tuple[str, str, int, str]:
        return self.file, self.operator, self.occurrence, self.source

    @property
    def change(self) -> str:
        """What reasons.json explains it by; it stays the same while the line does."""
        return f"{self.file}: {self.diff}"


def places_of(file: str, source: str) -> list[Place]:
    """Places in the order of the text. The bars of types in annotations are none: nothing computes with them."""
    from cosmic_ray.ast import ast_nodes, get_ast
    from cosmic_ray.plugins import get_operator, operator_names

    nodes = list(ast_nodes(get_ast(source)))
    places: dict[tuple[Any, Any], list[tuple[str, int]]] = {}
    for name in operator_names():
        operator = get_operator(name)
        if operator.arguments():
            continue  # asks for names of variables
        positions = ((node, *place) for node in nodes for place in operator().mutation_positions(node))
        for occurrence, (node, start, end) in enumerate(positions):
            if not ("BinaryOperator_BitOr" in name and in_annotation(node)):
                places.setdefault((start, end), []).append((name.removeprefix("core/"), occurrence))
    return [Place(file, start[0], tuple(changes)) for (start, end), changes in sorted(places.items())]


def in_annotation(node: Any) -> bool:
    while (parent := node.parent) is not None:
        if parent.type == "tfpdef" or (parent.type == "annassign" and parent.children[1] is node):
            return True
        if parent.type == "funcdef" and parent.annotation is node:
            return True
        node = parent
    return False


def mutated(source: str, operator: str, occurrence: int) -> str:
    from cosmic_ray.mutating import mutate_code
    from cosmic_ray.plugins import get_operator

    return str(mutate_code(source, get_operator(f"core/{operator}")(), occurrence))


def shares(counts: Mapping[str, int], size: int) -> dict[str, int]:
    """`size` divided among files in proportion to their counts, by the largest remainders."""
    total = sum(counts.values())
    out = {file: size * count // total for file, count in counts.items()}
    by_remainder = sorted(counts, key=lambda file: (-(size * counts[file] % total), file))
    return {file: n + (file in by_remainder[: size - sum(out.values())]) for file, n in out.items()}


def drawn(source: str, places: Sequence[Place], number: int, seed: str) -> list[Mutant]:
    """Mutants of one file without their results: places, all alike likely, and of each one of its changes. A change that is no
    Python does not count."""
    choice = random.Random(seed)
    out: list[Mutant] = []
    for place in choice.sample(places, len(places)):
        if len(out) == number:
            break
        operator, occurrence = choice.choice(place.changes)
        after = mutated(source, operator, occurrence)
        if is_python(after):
            out.append(Mutant(place.file, place.line, operator, occurrence, digest(source), changed_lines(source, after)))
    return sorted(out, key=lambda mutant: mutant.line)


def is_python(text: str) -> bool:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SyntaxWarning)  # `is` with a number
        try:
            compile(text, "", "exec")
        except SyntaxError:
            return False
    return True


def sample(root: Path, files: Iterable[str], size: int, seed: int) -> tuple[list[Mutant], dict[str, int]]:
    """The mutants, and the number of places of each file. What is drawn of a file does not depend on the others but for how
    much it is."""
    sources = {file: (root / file).read_text(encoding="utf-8") for file in files}
    places = {file: places_of(file, source) for file, source in sources.items()}
    counts = {file: len(found) for file, found in places.items()}
    numbers = shares(counts, size)
    return [m for file in places for m in drawn(sources[file], places[file], numbers[file], f"{seed} {file}")], counts


def digest(source: str) -> str:
    return hashlib.sha256(source.encode()).hexdigest()[:12]


def changed_lines(before: str, after: str) -> str:
    lines = list(difflib.unified_diff(before.splitlines(), after.splitlines(), n=0, lineterm=""))[3:]
    old, new = ([line[1:].strip() for line in lines if line[0] == sign and line[1:].strip()] for sign in "-+")
    return f"{' '.join(old)} -> {' '.join(new) or 'nothing'}"


@contextmanager
def copy_of(root: Path) -> Iterator[Path]:
    """The files that git knows or would, in a temporary folder."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=root,
        capture_output=True,
        check=True,
        text=True,
    )
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        for name in filter(None, listed.stdout.split("\0")):
            if (root / name).is_file():
                (Path(folder) / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(root / name, Path(folder) / name)
        yield Path(folder)


class Trials:
    """Runs tests in the copy, in forks of a process that has imported the libraries."""

    def __init__(self, copy: Path, libraries: Sequence[str] = LIBRARIES) -> None:
        self.copy = copy
        self.seconds: dict[tuple[str, ...], float] = {}
        self.forks = subprocess.Popen(
            [sys.executable, HERE / "forks.py", *libraries],
            cwd=copy,
            env=os.environ | {"PYTHONPATH": str(copy), "OMP_NUM_THREADS": "1"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._answer()

    def close(self) -> None:
        self.forks.terminate()
        self.forks.wait()

    def _answer(self) -> str:
        assert self.forks.stdout is not None
        if not (line := self.forks.stdout.readline()):
            raise RuntimeError("the process that runs the tests has ended")
        return line

    def run(self, tests: Sequence[str], limit: float) -> tuple[int | None, float]:
        """Pytest's exit status (None after `limit` seconds) and the seconds taken."""
        assert self.forks.stdin is not None
        self.forks.stdin.write(json.dumps([limit, "-x", "-p", "no:cacheprovider", *tests]) + "\n")
        self.forks.stdin.flush()
        status, seconds = json.loads(self._answer())
        return status, seconds

    def normal_seconds(self, tests: tuple[str, ...]) -> float:
        """Of the tests without any change, which must pass."""
        if tests not in self.seconds:
            status, self.seconds[tests] = self.run(tests, 600)
            if status != 0:
                raise RuntimeError(f"without a mutant, `pytest {' '.join(tests)}` ends with status {status}")
        return self.seconds[tests]

    def try_out(self, mutant: Mutant, file: Path, tests: tuple[str, ...]) -> Mutant:
        """The mutant with its result: the file in the copy is changed while its tests run."""
        limit = 20 + 5 * self.normal_seconds(tests)
        path, before = self.copy / file, (self.copy / file).stat()
        source = path.read_text(encoding="utf-8")
        try:
            path.write_text(mutated(source, mutant.operator, mutant.occurrence), encoding="utf-8")
            os.utime(path, (0, 0))  # never the time of a compiled file
            status, seconds = self.run(tests, limit)
        finally:
            path.write_text(source, encoding="utf-8")
            os.utime(path, (before.st_atime, before.st_mtime))
        if status in (4, 5):
            raise RuntimeError(f"pytest found no tests in {' '.join(tests)}")
        result = TIMEOUT if status is None else SURVIVED if status == 0 else KILLED
        return replace(mutant, result=result, seconds=f"{seconds:.1f}")


def tests_of(file: str, root: Path) -> tuple[str, ...]:
    path = Path("tests", file)
    mirror = path.with_name(f"test_{path.name}")
    return (*([str(mirror)] if (root / mirror).is_file() else []), *PURE[file], *OF_ALL)


def read(path: Path) -> list[Mutant]:
    if not path.is_file():
        return []
    with open(path, encoding="utf-8", newline="") as stream:
        rows: list[dict[str, Any]] = list(csv.DictReader(stream))
    return [Mutant(**row | {"line": int(row["line"]), "occurrence": int(row["occurrence"])}) for row in rows]


def write(path: Path, mutants: Iterable[Mutant]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "w", encoding="utf-8", newline="") as stream:
        rows = csv.DictWriter(stream, [field.name for field in fields(Mutant)], lineterminator="\n")
        rows.writeheader()
        rows.writerows(asdict(mutant) for mutant in mutants)


def table(mutants: Sequence[Mutant], places: Mapping[str, int], reasons: Mapping[str, str]) -> str:
    """Scores of the rooms and of all, and the survivors with their reasons."""

    def row(name: str, room: str) -> list[str]:
        here = [mutant for mutant in mutants if mutant.file.startswith(room)]
        files = [file for file in places if file.startswith(room)]
        numbers = [sum(mutant.result == result for mutant in here) for result in (KILLED, TIMEOUT, SURVIVED)]
        share = (numbers[0] + numbers[1]) / max(len(here), 1)
        low, high = wilson_bounds(share, len(here))
        score = f"{100 * share:.1f} % [{100 * low:.1f}, {100 * high:.1f}]"
        return [name, *map(str, [len(files), sum(places[file] for file in files), len(here), *numbers]), score]

    rooms = [room for room, _ in itertools.groupby(sorted(places), key=lambda file: file.split("/")[0])]
    header = ["room", "files", "places", "mutants", "killed", "ended by time", "survived", "noticed"]
    rows = [header, *(row(room, f"{room}/") for room in rooms), row("all", "")]
    survivors = [
        [f"{mutant.file}:{mutant.line}", code(mutant.diff), reasons.get(mutant.change, "not explained")]
        for mutant in mutants
        if mutant.result == SURVIVED
    ]
    return f"{markdown(rows)}\n\n## Survivors\n{markdown([['place', 'change', 'why'], *survivors])}"


def code(text: str) -> str:
    """As code in a cell of a table."""
    return "`` " + text.replace("|", "\\|") + " ``"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", type=int, default=SIZE, help="how many mutants")
    parser.add_argument("--seed", type=int, default=SEED)
    parser.add_argument("--resume", action="store_true", help="keep what an interrupted run has found")
    parser.add_argument("--survivors", action="store_true", help="try those that survived again, and what has no result")
    parser.add_argument("--page", action="store_true", help="only write the tables, from mutants.csv and reasons.json")
    options = parser.parse_args()
    mutants, places = sample(ROOT / "oar_lightning", PURE, options.size, options.seed)
    past = read(SO_FAR) if options.resume else read(FOUND) if options.page or options.survivors else []
    known = {m.key: (m.result, m.seconds) for m in past if not (options.survivors and m.result == SURVIVED)}
    done = [replace(m, result=known.get(m.key, ("", ""))[0], seconds=known.get(m.key, ("", ""))[1]) for m in mutants]
    if not options.page:
        with copy_of(ROOT) as copy:
            trials = Trials(copy)
            try:
                for i, mutant in enumerate(done):
                    if not mutant.result:
                        done[i] = trials.try_out(mutant, Path("oar_lightning", mutant.file), tests_of(mutant.file, copy))
                        write(SO_FAR, (m for m in done if m.result))
                        sys.stdout.write(f"{i + 1}/{len(done)} {done[i].result} {done[i].seconds} s {mutant.change}\n")
                        sys.stdout.flush()
            finally:
                trials.close()
    text = table(done, places, json.loads((HERE / "reasons.json").read_text(encoding="utf-8")))
    if (options.size, options.seed) == (SIZE, SEED):
        write(FOUND, done)
        fill(HERE / "README.md", text)
    else:
        sys.stdout.write(f"{text}\n")


if __name__ == "__main__":
    main()
