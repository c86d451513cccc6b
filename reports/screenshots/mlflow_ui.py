"""MLflow's UI as a user goes through it: the table of runs, the comparison, an artifact. Written for MLflow 3.17."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from browser import Browser

WITHOUT_JOBS = {"MLFLOW_DISABLE_TELEMETRY": "true", "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"}
"""The server's job runner starts nine more processes, which nothing here needs."""

# the assistant's panel opens by itself on a first visit and covers the table
NO_ASSISTANT = "".join(
    f"localStorage.setItem('mlflow.assistant.{key}', '{value}');"
    for key, value in (("fab.autoOpenedOnFirstLoad_v1", "true"), ("panelOpen_v1", "false"))
)


@contextlib.contextmanager
def serve(store: str, artifacts: Path, log: Path, timeout_s: float = 120.0) -> Iterator[str]:
    """`mlflow ui` over a store with one worker on a free port of this machine; yields its address.

    Raises:
        RuntimeError: with the server's own words, where it does not come up.
    """
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    options = ["--backend-store-uri", store, "--artifacts-destination", str(artifacts)]
    with log.open("w") as output:
        server = subprocess.Popen(
            [sys.executable, "-m", "mlflow", "ui", *options, "--host", "127.0.0.1", "--port", str(port), "--workers", "1"],
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            env=os.environ | WITHOUT_JOBS,
        )
        try:
            address = f"http://127.0.0.1:{port}"
            deadline = time.monotonic() + timeout_s
            while not answers(f"{address}/health"):
                if server.poll() is not None or time.monotonic() > deadline:
                    raise RuntimeError(f"mlflow ui did not come up:\n{log.read_text()[-2000:]}")
                time.sleep(0.2)
            yield address
        finally:
            with contextlib.suppress(ProcessLookupError):  # it has ended by itself
                os.killpg(server.pid, signal.SIGKILL)  # its workers are children
            server.wait()


def answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=5) as answer:
            return bool(answer.status == 200)
    except (urllib.error.URLError, ConnectionError, TimeoutError):
        return False


class MlflowUi:
    """The UI at `address` in a browser."""

    def __init__(self, browser: Browser, address: str) -> None:
        self.browser = browser
        self.address = address
        browser.call("Page.addScriptToEvaluateOnNewDocument", source=NO_ASSISTANT)

    def open(self, place: str) -> None:
        self.browser.open("about:blank")  # a change behind the # alone would keep the page as it is
        self.browser.open(f"{self.address}/#/{place}")

    def open_runs(self, experiment_id: str) -> None:
        self.open(f"experiments/{experiment_id}/runs")
        self.browser.wait_for("document.querySelectorAll('.ag-row').length > 0")

    def run_names(self) -> list[str]:
        """The runs that the table shows, from above."""
        rows = "[...document.querySelectorAll('.ag-pinned-left-cols-container .ag-row')]"
        place = "Number(a.getAttribute('row-index')) - Number(b.getAttribute('row-index'))"
        names: list[str] = self.browser.evaluate(
            f"{rows}.sort((a, b) => {place}).map(row => row.querySelector('a')?.innerText ?? '')"
        )
        return names

    def expand(self, run_id: str) -> None:
        """Show the runs nested under one."""
        self.browser.click(f"document.querySelector('[row-id=\"{run_id}\"] [data-component-id*=runnamecellrenderer]')")

    def choose_columns(self, names: Sequence[str]) -> None:
        """Tick columns in the table's list of columns, or untick those that are ticked."""
        self.browser.click("document.querySelector('[data-component-id*=runscolumnselector]')")
        for name in names:
            self.browser.click("document.querySelector('input[placeholder=\"Search columns\"]')")
            self.browser.evaluate("document.activeElement.select()")
            self.browser.call("Input.insertText", text=name)
            titles = "[...document.querySelectorAll('.du-bois-light-tree-node-content-wrapper')]"
            title = f"{titles}.find(e => e.innerText.trim() === {json.dumps(name)})"
            self.browser.click(f"{title}?.parentElement.querySelector('.du-bois-light-tree-checkbox')")
        self.press_escape()

    def press_escape(self) -> None:
        for kind in ("keyDown", "keyUp"):
            self.browser.call("Input.dispatchKeyEvent", type=kind, key="Escape", code="Escape", windowsVirtualKeyCode=27)

    def cell(self, run_id: str, column: str) -> str:
        """What the table shows of a run, e.g. in the column ``metrics.`objective` ``."""
        found = f'document.querySelector(\'[row-id="{run_id}"] [col-id="{column}"]\')'
        text: str = self.browser.wait_for(f"{found}?.innerText.trim()")
        return text

    def compare(self, run_ids: Sequence[str]) -> None:
        """Tick runs in the table and press Compare."""
        for run_id in run_ids:
            self.browser.click(f"document.querySelector('[row-id=\"{run_id}\"] .ag-selection-checkbox input')")
            self.browser.wait_for(f"document.querySelector('[row-id=\"{run_id}\"].ag-row-selected') !== null")
        self.browser.click(with_text("button", "Compare"))
        self.browser.wait_for_text("Parallel Coordinates Plot")

    def plotted(self) -> list[dict[str, Any]]:
        """What the page's plots were given to draw: Plotly's traces."""
        traces: list[dict[str, Any]] = self.browser.wait_for(
            "(found => found.length && JSON.parse(JSON.stringify(found)))"
            "([...document.querySelectorAll('.js-plotly-plot')].flatMap(plot => plot.data ?? []))"
        )
        return traces

    def click_tab(self, name: str) -> None:
        self.browser.click(with_text("[role=tab]", name))

    def open_artifact(self, run_id: str, experiment_id: str, path: str) -> None:
        self.open(f"experiments/{experiment_id}/runs/{run_id}/artifacts/{path}")

    def frame(self, expression: str, timeout_s: float = 60.0) -> Any:
        """A JavaScript expression's value in the shown artifact's frame, as soon as it is true."""
        deadline = time.monotonic() + timeout_s
        while not (value := self.browser.evaluate_in_frame(expression)):
            if time.monotonic() > deadline:
                raise TimeoutError(f"{expression} did not come true in the artifact's frame within {timeout_s:.0f} s")
            time.sleep(0.2)
        return value


def with_text(selector: str, text: str) -> str:
    """JavaScript for the first element whose text begins so."""
    return f"[...document.querySelectorAll('{selector}')].find(e => e.innerText.trim().startsWith({json.dumps(text)}))"
