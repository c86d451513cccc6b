"""MLflow's UI as a user goes through it: the table of runs, a run, the comparison, an artifact. Written for MLflow 3.17."""

from __future__ import annotations

import contextlib
import os
import re
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

from browser import value_of, wait_for_text
from playwright.sync_api import Frame, Locator, Page

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
    """The UI at `address` in a page of a browser."""

    def __init__(self, page: Page, address: str) -> None:
        self.page = page
        self.address = address
        page.add_init_script(NO_ASSISTANT)

    def open(self, place: str) -> None:
        self.page.goto("about:blank")  # a change behind the # alone would keep the page as it is
        self.page.goto(f"{self.address}/#/{place}")

    def open_runs(self, experiment_id: str) -> None:
        self.open(f"experiments/{experiment_id}/runs")
        self.page.locator(".ag-row").first.wait_for()

    def open_run(self, experiment_id: str, run_id: str, tab: str = "") -> None:
        """A run's overview, or another of its tabs: ``model-metrics``, ``system-metrics``, ``artifacts/<path>``."""
        self.open(f"experiments/{experiment_id}/runs/{run_id}/{tab}".rstrip("/"))

    def run_names(self) -> list[str]:
        """The runs that the table shows, from above."""
        place = "Number(a.getAttribute('row-index')) - Number(b.getAttribute('row-index'))"
        names: list[str] = self.page.locator(".ag-pinned-left-cols-container .ag-row").evaluate_all(
            f"rows => rows.sort((a, b) => {place}).map(row => row.querySelector('a')?.innerText ?? '')"
        )
        return names

    def chart_groups(self) -> list[str]:
        """The headings of the charts on a run's page of metrics, from above."""
        heads = self.page.locator(".du-bois-light-collapse-header")
        heads.first.wait_for()
        return [text.split("\n")[0] for text in heads.all_inner_texts()]

    def expand(self, run_id: str) -> None:
        """Show the runs nested under one."""
        self.page.locator(f'[row-id="{run_id}"] [data-component-id*=runnamecellrenderer]').first.click()

    def choose_columns(self, names: Sequence[str]) -> None:
        """Tick columns in the table's list of columns, or untick those that are ticked."""
        self.page.locator("[data-component-id*=runscolumnselector]").first.click()
        for name in names:
            self.page.get_by_placeholder("Search columns").fill(name)
            node = self.page.locator(".du-bois-light-tree-treenode", has_text=re.compile(f"^{re.escape(name)}$"))
            node.locator(".du-bois-light-tree-checkbox").click()
        self.page.keyboard.press("Escape")

    def cell(self, run_id: str, column: str) -> str:
        """What the table shows of a run, e.g. in the column ``metrics.`objective` ``."""
        found = f'document.querySelector(\'[row-id="{run_id}"] [col-id="{column}"]\')'
        text: str = value_of(self.page, f"{found}?.innerText.trim()")
        return text

    def compare(self, run_ids: Sequence[str]) -> None:
        """Tick runs in the table and press Compare."""
        for run_id in run_ids:
            self.page.locator(f'[row-id="{run_id}"] .ag-selection-checkbox input').click()
            self.page.locator(f'[row-id="{run_id}"].ag-row-selected').first.wait_for()
        self.page.get_by_role("button", name="Compare").click()
        wait_for_text(self.page, "Parallel Coordinates Plot")

    def plotted(self) -> list[dict[str, Any]]:
        """What the page's plots were given to draw: Plotly's traces."""
        traces: list[dict[str, Any]] = value_of(
            self.page,
            "(found => found.length && JSON.parse(JSON.stringify(found)))"
            "([...document.querySelectorAll('.js-plotly-plot')].flatMap(plot => plot.data ?? []))",
        )
        return traces

    def tab(self, name: str) -> Locator:
        return self.page.get_by_role("tab", name=name)

    def artifact(self, experiment_id: str, run_id: str, path: str) -> Frame:
        """Open an HTML artifact; the frame that shows it."""
        self.open_run(experiment_id, run_id, f"artifacts/{path}")
        frame = self.page.locator("iframe").first.element_handle().content_frame()
        assert frame is not None
        return frame
