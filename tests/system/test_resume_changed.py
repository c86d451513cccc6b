"""A run that was killed goes on as it was, and as no other: with another gate, scorer or data nothing is written."""

from __future__ import annotations

import json
import signal
import time
from itertools import islice
from pathlib import Path

from support.commands import run, started

from oar_lightning.data.chain.task import ChainProblems, ChainTask

COMMAND = (
    *(
        "+experiment=smoke",
        "data=files",
        "data.train.paths=rows.jsonl",
        "data.evaluation.test.paths=rows.jsonl",
        "num_threads=1",
    ),
    *("rollout.max_new_tokens=40", "evaluation.problems=2", "evaluation.samples=1", "evaluation.heatmap=false"),
    *("trainer.max_steps=900", "checkpoint_every_n_steps=1"),
)


def write_rows(folder: Path, last: str) -> None:
    problems = list(islice(ChainProblems(ChainTask()), 16))
    rows = [{"problem": p.question, "answer": p.answer, "solution": p.solution} for p in problems]
    rows[-1]["answer"] = last
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


def contents(*places: Path) -> dict[str, bytes]:
    files = [path for place in places for path in ([place] if place.is_file() else place.rglob("*"))]
    return {str(path): path.read_bytes() for path in files if path.is_file()}


def test_after_a_kill_another_gate_scorer_or_data_is_refused(tmp_path: Path) -> None:
    write_rows(tmp_path, "1")
    with started(tmp_path, *COMMAND, "hydra.run.dir=run") as command:
        checkpoint, deadline = tmp_path / "run" / "checkpoints" / "last.ckpt", time.monotonic() + 100
        while not checkpoint.exists():
            assert command.poll() is None, command.shown
            assert time.monotonic() < deadline, command.shown
            time.sleep(0.02)
        command.send_signal(signal.SIGKILL)
        assert command.wait(60) == -signal.SIGKILL
    places = (tmp_path / "run", tmp_path / "mlflow.db", tmp_path / "mlartifacts")
    before = contents(*places)
    scorers = "oar_lightning.credit.scorers.OarG -> oar_lightning.credit.scorers.Entropy"
    for answer, changed, told in (
        (
            "1",
            ("gate.tau=0.9", "scorer=entropy"),
            (f"scorer._target_: {scorers}; ", "gate.tau: 0.4 -> 0.9. Give the old values"),
        ),
        ("2", (), ("Changed: content of data.train: ", "content of data.evaluation.test: ")),
    ):
        write_rows(tmp_path, answer)
        done = run(tmp_path, *COMMAND, "ckpt_path=run", *changed)
        assert done.code == 1
        assert all(part in done.shown for part in told), done.shown
        assert "resume_changed=true" in done.shown
        assert "Traceback" not in done.shown
        assert contents(*places) == before
