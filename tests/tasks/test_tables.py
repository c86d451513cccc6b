"""Every table that a command prints, 80 columns wide, with the longest names and numbers to be expected."""

from __future__ import annotations

import ast
import dataclasses
import re
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from support.console import rendered
from support.lab_findings import findings
from support.results import result

import oar_lightning
from oar_lightning.answers.audit import AuditReport
from oar_lightning.benchmark.measure import BenchmarkConfig
from oar_lightning.benchmark.phases import TIMED_PHASES
from oar_lightning.benchmark.summary import Measurement, PhaseResult
from oar_lightning.benchmark.work import Rates
from oar_lightning.common.tables import ConsoleTable
from oar_lightning.data.decontamination import EXACT, OVERLAP, ContaminationReport, Finding
from oar_lightning.evaluation.metrics import evaluation_metrics
from oar_lightning.evaluation.tables import accuracy_table, before_after_table, level_table
from oar_lightning.inspection.completion_scores import ScoreSummary
from oar_lightning.lab.measure_tables import measure_tables
from oar_lightning.lab.reliability import Reliability
from oar_lightning.lab.table import compared, difference_table, table, truth_table
from oar_lightning.lab.types import Measure
from oar_lightning.planning.job import Planned
from oar_lightning.planning.memory import Item, Plan
from oar_lightning.planning.policy import PolicySize
from oar_lightning.reporting.statistics import Interval
from oar_lightning.tasks import audit, benchmark, decontaminate, plan, score, sync

EVAL_SETS = ("chain", "math500", "aime24_thirty_problems", "competition_mathematics_level_5_held_out")
METHODS = ("grpo", "oar_g", "oar_p", "oar_p_approximate", "entropy", "random", "shuffled", "inverted", "uniform", "oracle")
METHODS = (*METHODS, "oar_p_counterfactual_coarse_spans", "my_experiment_with_a_name_that_is_longer_than_any_column")


def metrics() -> dict[str, dict[str, float]]:
    levels = ("1", "Level 5", "competition, national olympiad final round")
    results = [result([0, i % 3, 1, None] * 4, i % 2, level=levels[i % 3]) for i in range(40)]
    return {name: evaluation_metrics(results) for name in EVAL_SETS}


def before_and_after() -> ConsoleTable:
    low, high = evaluation_metrics([result([1] * 16, 1)] * 40), evaluation_metrics([result([0] * 16, 0)] * 40)
    return before_after_table(dict.fromkeys(EVAL_SETS, (low, high)) | {"chain": (metrics()["chain"],) * 2})


def benchmarked(number: int) -> ConsoleTable:
    config = BenchmarkConfig("paper_qwen2_5_7b", {"grpo": {}}, step_bars=dict.fromkeys(METHODS, 1.3))
    results = [
        PhaseResult(
            *("p", name, phase, 12345.678, 12345.678, 3086.4195, 80 * 2**30, 1234567.8, 9876.543, 12345.678, 123.45),
            product_seconds=12345.678,
            step_ratio=123.45,
        )
        for name in METHODS
        for phase in (*TIMED_PHASES, "step", "scoring")
    ]
    return benchmark.tables(config, Measurement(results, Rates(1e12, 1e11, 1e11), 10, 0, 0))[number]


def audited() -> ConsoleTable:
    counts = dict.fromkeys(
        ("rows", "with_gold", "extracted", "verified", "gold_only", "no_marker", "unparseable", "timeouts"), 1234567
    )
    confusion = dict.fromkeys(("tp", "fp", "fn", "tn"), 1234567)
    names = ("a.jsonl", "outputs_of_qwen2_5_math_7b_instruct_on_math500_temperature_0.6.jsonl.gz")
    return audit.summary([AuditReport(names[0]), AuditReport(names[1], **counts, seconds=12345.678, confusion=confusion)])


def contaminated() -> ConsoleTable:
    findings = [Finding("1", name, "2", kind) for name in EVAL_SETS for kind in (EXACT, OVERLAP)]
    return decontaminate.table(ContaminationReport(1234567, 8, dict.fromkeys(EVAL_SETS, 123456), findings))


def planned() -> ConsoleTable:
    items = [Item(f"{what} of the policy with its gradients", 123.456e9) for what in ("weights", "optimizer states")]
    size = PolicySize.__new__(PolicySize)
    return plan.table(Planned(size, Plan(items), lambda n: 0.0, None, None, None, False, False, 0.0))


def scored() -> ConsoleTable:
    summary = ScoreSummary()
    summary.completions = summary.with_answer = summary.labelled = summary.agree = 1234567
    return score.table(
        "OarCounterfactual", summary, {f"rows of more than 4096 tokens ({'score.max_tokens, ' * 4}limit)": 12345}
    )


def synced() -> ConsoleTable:
    folder = Path("/scratch/projects/reasoning/outputs")
    runs = [f"paper_qwen2_5_7b/seed{i}/2026-11-22_16-05-18_with_a_longer_name" for i in range(2)]
    return sync.table(folder, [sync.Synced(folder / run, "0123456789abcdef" * 2, 1234567, 7654321) for run in runs])


def lab(name: str) -> ConsoleTable:
    found = findings(METHODS)
    if name == "truth":
        return truth_table(found, {t.name: Reliability(0.123, 0.456, 0.789) for t in found.truths})
    return difference_table(found, compared(found, "grpo"), "grpo") if name == "difference" else table(found)


def lab_measures(number: int) -> ConsoleTable:
    """Removal, stability and gradients of a lab."""
    found = findings(METHODS)
    count = len(found.studied.problem)
    keys = [f"direct.{fill}.comprehensiveness" for fill in ("pad", "mean_embedding", "random_token", "model_sample")]
    values = {name: tuple(-12.345678 * (i + 1) for i in range(count)) for name in METHODS}
    measures = tuple(Measure(key, key, "high", values) for key in (*keys, "stability.sensitivity"))
    interval = Interval(-0.123456, -0.987654, 0.987654, 8)
    statistics = ("raw", "adam", "variance/(unweighted)", "same_batch/(values)", "adam_cosine/(unweighted)")
    gradients = {name: dict.fromkeys(statistics, interval) for name in ("(unweighted)", *METHODS)}
    return measure_tables(dataclasses.replace(found, measures=(*found.measures, *measures), gradients=gradients))[number]


TABLES: dict[str, Callable[[], ConsoleTable]] = {
    "evaluation/tables.py before_after_table": before_and_after,
    "evaluation/tables.py accuracy_table": lambda: accuracy_table(metrics(), dict.fromkeys(EVAL_SETS, 12345)),
    "evaluation/tables.py level_table": lambda: level_table(metrics()),
    "lab/table.py table": lambda: lab("estimators"),
    "lab/table.py difference_table": lambda: lab("difference"),
    "lab/table.py truth_table": lambda: lab("truth"),
    "lab/measure_tables.py _table": lambda: lab_measures(0),
    "lab/measure_tables.py _table, stability": lambda: lab_measures(1),
    "lab/measure_tables.py gradient_table": lambda: lab_measures(2),
    "tasks/audit.py summary": audited,
    "tasks/benchmark.py tables": lambda: benchmarked(0),
    "tasks/benchmark.py tables, scoring": lambda: benchmarked(1),
    "tasks/decontaminate.py table": contaminated,
    "tasks/plan.py table": planned,
    "tasks/score.py table": scored,
    "tasks/sync.py table": synced,
}


@pytest.mark.parametrize("width", [80, 50])
@pytest.mark.parametrize("name", TABLES)
def test_every_cell_is_whole(name: str, width: int) -> None:
    printed = TABLES[name]()
    lines = rendered(printed, width)
    text = "\n".join(lines)
    assert "…" not in text
    shown = Counter(re.split(r"\s*[│┃]\s*|\s{2,}|\n| · ", text))
    wanted = Counter(cell for row in printed.rows for cell in row[printed.keys :] if cell)
    wanted |= Counter({cell for row in printed.rows for cell in row[: printed.keys] if " " not in cell})
    words = {word for row in printed.rows for cell in row[: printed.keys] for word in cell.split()}
    assert words <= set(re.split(r"[\s│┃]+", text))
    assert wanted
    assert not {cell: count for cell, count in wanted.items() if shown[cell] < count}
    for word in " ".join(printed.header).split():
        assert re.search(rf"(?<![\w/]){re.escape(word)}(?![\w/])", text), word
    too_long = [line for line in lines if len(line) > width and not any(c in line for row in printed.rows for c in row)]
    assert too_long in ([], [printed.title])


def test_every_table_of_the_package_is_in_the_list() -> None:
    """And only one file makes Rich's tables."""
    root = Path(oar_lightning.__file__).parent
    makers, rich = set(), set()
    for path in root.rglob("*.py"):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        file = str(path.relative_to(root))
        rich |= {file for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and node.module == "rich.table"}
        for function in (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)):
            calls = [node.func for node in ast.walk(function) if isinstance(node, ast.Call)]
            if any(isinstance(call, ast.Name) and call.id == "ConsoleTable" for call in calls):
                makers.add(f"{file} {function.name}")
    assert rich == {"common/tables.py"}
    assert makers == {name.partition(",")[0] for name in TABLES}
