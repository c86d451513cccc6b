"""A headless Chromium over the DevTools protocol's pipe: open pages, wait for what they show, take pictures.

Nothing but Chromium and the standard library is needed.
"""

from __future__ import annotations

import base64
import contextlib
import fcntl
import json
import os
import select
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")

FLAGS = (
    "--headless",
    "--no-sandbox",  # containers seldom allow it; only pages of our own are opened
    "--use-angle=swiftshader",
    "--enable-unsafe-swiftshader",  # plots of many points are drawn by WebGL
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-extensions",
    "--disable-site-isolation-trials",
    "--disable-features=IsolateSandboxedIframes,Translate",  # a sandboxed frame's text is then seen from its page
    "--hide-scrollbars",
    "--remote-debugging-pipe",
)

# Chromium reads commands from descriptor 3 and answers on 4
LAUNCH = "import os, sys; os.dup2(int(sys.argv[1]), 3); os.dup2(int(sys.argv[2]), 4); os.execv(sys.argv[3], sys.argv[3:])"


def find_chromium() -> str | None:
    return next(filter(None, map(shutil.which, NAMES)), None)


class Browser:
    """One window of Chromium; a context manager."""

    def __init__(self, executable: str, width: int = 1600, height: int = 1000) -> None:
        self.executable = executable
        self.size = (width, height)
        self._exit = contextlib.ExitStack()
        self._last = 0
        self._buffer = b""

    def __enter__(self) -> Browser:
        with contextlib.ExitStack() as stack:
            profile = stack.enter_context(tempfile.TemporaryDirectory(ignore_cleanup_errors=True))
            theirs_in, self._write = _high(os.pipe())
            self._read, theirs_out = _high(os.pipe())
            stack.callback(os.close, self._write)
            stack.callback(os.close, self._read)
            window = "--window-size={},{}".format(*self.size)
            command = [self.executable, *FLAGS, window, f"--user-data-dir={profile}", "about:blank"]
            process = subprocess.Popen(
                [sys.executable, "-c", LAUNCH, str(theirs_in), str(theirs_out), *command],
                pass_fds=(theirs_in, theirs_out),
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
            stack.callback(_end, process)
            os.close(theirs_in)
            os.close(theirs_out)
            target = self._call("Target.createTarget", url="about:blank")["targetId"]
            self._session: str | None = self._call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
            self.call("Page.enable")
            self._exit = stack.pop_all()
        return self

    def __exit__(self, *error: type[BaseException] | BaseException | TracebackType | None) -> None:
        self._exit.close()

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """A command to the page; gives its result.

        Raises:
            RuntimeError: what Chromium says of it.
        """
        return self._call(method, self._session, **parameters)

    def _call(self, method: str, session: str | None = None, timeout_s: float = 60.0, **parameters: Any) -> dict[str, Any]:
        self._last += 1
        message = {"id": self._last, "method": method, "params": parameters} | ({"sessionId": session} if session else {})
        os.write(self._write, json.dumps(message).encode() + b"\0")
        for answer in self._messages(time.monotonic() + timeout_s):
            if answer.get("id") == self._last:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']['message']}")
                return dict(answer["result"])
        raise TimeoutError(f"{method} was not answered within {timeout_s:.0f} s")

    def _messages(self, deadline: float) -> Iterator[dict[str, Any]]:
        """What Chromium says, in order; ends at the deadline."""
        while (left := deadline - time.monotonic()) > 0:
            *whole, self._buffer = self._buffer.split(b"\0")
            for message in whole:
                yield json.loads(message)
            if select.select([self._read], [], [], left)[0]:
                received = os.read(self._read, 1 << 20)
                if not received:
                    raise RuntimeError(f"{self.executable} ended")
                self._buffer += received

    def open(self, url: str) -> None:
        self.call("Page.navigate", url=url)

    def evaluate(self, expression: str) -> Any:
        """The value of a JavaScript expression in the page; a promise is waited for.

        Raises:
            RuntimeError: where it throws.
        """
        result = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in result:
            raise RuntimeError(f"{expression}: {result['exceptionDetails']['exception'].get('description')}")
        return result["result"].get("value")

    def evaluate_in_frame(self, expression: str) -> Any:
        """The same in the page's first frame, whatever its sandbox keeps from the page; None where there is no frame."""
        children = self.call("Page.getFrameTree")["frameTree"].get("childFrames")
        if not children:
            return None
        world = self.call("Page.createIsolatedWorld", frameId=children[0]["frame"]["id"])["executionContextId"]
        return self.call("Runtime.evaluate", expression=expression, contextId=world, returnByValue=True)["result"].get("value")

    def wait_for(self, expression: str, timeout_s: float = 60.0) -> Any:
        """The expression's value, as soon as it is true.

        Raises:
            TimeoutError: with what the page shows instead.
        """
        deadline = time.monotonic() + timeout_s
        while not (value := self.evaluate(expression)):
            if time.monotonic() > deadline:
                shown = " ".join(str(self.evaluate("document.body?.innerText")).split())[:1500]
                raise TimeoutError(f"{expression} did not come true within {timeout_s:.0f} s; the page shows: {shown}")
            time.sleep(0.2)
        return value

    def wait_for_text(self, *texts: str, timeout_s: float = 60.0) -> None:
        for text in texts:
            self.wait_for(f"document.body?.innerText.includes({json.dumps(text)})", timeout_s)

    def click(self, element: str) -> None:
        """Click the middle of what a JavaScript expression names, as a hand would: once it is there and stands still."""
        self.wait_for(f"({element}) != null")
        middle = (
            f"(e => {{ e.scrollIntoView({{block: 'nearest'}}); const r = e.getBoundingClientRect();"
            f" return [r.x + r.width / 2, r.y + r.height / 2]; }})({element})"
        )
        before, (x, y) = None, self.evaluate(middle)
        while before != (x, y):
            time.sleep(0.2)
            before, (x, y) = (x, y), self.evaluate(middle)
        for kind in ("mousePressed", "mouseReleased"):
            self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)

    def wait_still(self, timeout_s: float = 20.0) -> None:
        """Wait until the page looks the same twice, half a second apart: plots are drawn after their data are there."""
        deadline, before = time.monotonic() + timeout_s, ""
        while (now := self._picture()) != before and time.monotonic() < deadline:
            before = now
            time.sleep(0.5)

    def _picture(self) -> str:
        return str(self.call("Page.captureScreenshot", format="png")["data"])

    def screenshot(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(base64.b64decode(self._picture()))


def _high(pipe: tuple[int, int]) -> tuple[int, int]:
    """The pipe with descriptors that cannot meet 3 and 4."""
    moved = [fcntl.fcntl(end, fcntl.F_DUPFD_CLOEXEC, 10) for end in pipe]
    for end in pipe:
        os.close(end)
    return moved[0], moved[1]


def _end(process: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(ProcessLookupError):  # it may have ended by itself
        os.killpg(process.pid, 9)
    process.wait()
