"""A stand-in for an OpenAI-compatible endpoint on 127.0.0.1, which answers as a test says, also wrongly."""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Behaviour = Callable[["Handler"], None]


class Server(ThreadingHTTPServer):
    """`behaviours`: what the next requests meet; the last of them stays. `requests`: the bodies so far."""

    daemon_threads = True
    block_on_close = False

    def __init__(self, *behaviours: Behaviour) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.behaviours = list(behaviours)
        self.requests: list[dict[str, Any]] = []
        self.keys: list[str] = []
        self.closing = threading.Event()
        self.lock = threading.Lock()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/v1"

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that has gone is what tests are about."""


class Handler(BaseHTTPRequestHandler):
    server: Server
    protocol_version = "HTTP/1.1"
    wbufsize = -1  # head and body leave together; apart, the second waits for an acknowledgement
    request_text: str
    """What the request says of the solution."""

    def log_message(self, format: str, *args: Any) -> None:
        pass

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.request_text = body["messages"][1]["content"]
        with self.server.lock:
            self.server.requests.append(body | {"path": self.path})
            self.server.keys.append(self.headers.get("Authorization", ""))
            behaviours = self.server.behaviours
            behaviour = behaviours.pop(0) if len(behaviours) > 1 else behaviours[0]
        behaviour(self)

    def send(self, body: bytes, code: int = 200, **headers: str) -> None:
        self.send_response(code)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        self.wfile.write(body)

    def begin(self, length: int, code: int = 200) -> None:
        """The head of a response."""
        self.send_response(code)
        self.send_header("Content-Length", str(length))
        self.end_headers()
        self.wfile.flush()


def completion(content: Any, tokens: Any = 100) -> bytes:
    """A response's body."""
    message = {"role": "assistant", "content": content}
    return json.dumps({"choices": [{"index": 0, "message": message}], "usage": {"total_tokens": tokens}}).encode()


def says(content: Any, tokens: Any = 100) -> Behaviour:
    return lambda handler: handler.send(completion(content, tokens))


def wrong(*numbers: Any) -> Behaviour:
    """Calls these steps wrong."""
    return says(json.dumps({"wrong_steps": list(numbers)}))


def fails(code: int, **headers: str) -> Behaviour:
    return lambda handler: handler.send(b'{"error": {"message": "no"}}', code, **headers)


@contextlib.contextmanager
def judge_server(*behaviours: Behaviour) -> Iterator[Server]:
    server = Server(*behaviours)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.closing.set()
        server.shutdown()
        server.server_close()
        thread.join()
