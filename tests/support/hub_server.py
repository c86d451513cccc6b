"""A stand-in for the Hugging Face hub on 127.0.0.1: the requests of an upload, answered as the hub does, and what they held."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
import yaml

TOKEN = "hf_standinStandinStandin"
OWNER = "ann"


class Hub(ThreadingHTTPServer):
    """What the hub holds: repositories with whether they are private, the files of each, and every request."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.private: dict[str, bool] = {}
        self.files: dict[str, dict[str, bytes]] = {}
        self.stored: dict[str, bytes] = {}
        self.requests: list[str] = []
        self.refused: set[str] = set()
        """Beginnings of requests that are answered with an error of the hub's own."""

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


class Handler(BaseHTTPRequestHandler):
    server: Hub
    protocol_version = "HTTP/1.1"
    timeout = 20

    def log_message(self, format: str, *args: Any) -> None:
        pass

    def answer(self, content: Any = None, code: int = 200) -> None:
        body = json.dumps(content).encode()
        self.send_response(code)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def handle_request(self) -> None:
        hub, path = self.server, self.path.split("?")[0]
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if path == "/api/agent-harnesses":  # of the library's own, for its header User-Agent
            return self.answer({"error": "not found"}, 404)
        hub.requests.append(f"{self.command} {path}")
        if any(hub.requests[-1].startswith(beginning) for beginning in hub.refused):
            return self.answer({"error": "no room left"}, 507)
        if path.startswith("/stored/"):  # signed addresses take no token
            assert hashlib.sha256(body).hexdigest() == path.removeprefix("/stored/")
            hub.stored[path.removeprefix("/stored/")] = body
            return self.answer()
        if self.headers.get("Authorization") != f"Bearer {TOKEN}":
            return self.answer({"error": "Invalid credentials"}, 401)
        if path == "/api/whoami-v2":
            return self.answer({"name": OWNER, "orgs": []})
        if path == "/api/validate-yaml":
            return self.answer(*self.validated(json.loads(body)["content"]))
        if path == "/api/repos/create":
            return self.create(json.loads(body))
        if path.endswith(".git/info/lfs/objects/batch"):
            actions = [
                {**o, "actions": {"upload": {"href": f"{hub.url}/stored/{o['oid']}"}}} for o in json.loads(body)["objects"]
            ]
            return self.answer({"transfer": "basic", "objects": actions})
        if "/preupload/" in path:
            names = [file["path"] for file in json.loads(body)["files"]]
            modes = {name: "lfs" if name.endswith(".safetensors") else "regular" for name in names}
            return self.answer({"files": [{"path": n, "uploadMode": m, "shouldIgnore": False} for n, m in modes.items()]})
        if "/commit/" in path:
            return self.commit(path.split("/api/models/")[1].split("/commit/")[0], body)
        return self.answer({"error": "not found"}, 404)

    do_GET = do_POST = do_PUT = handle_request

    def validated(self, content: str) -> tuple[Any, int]:
        try:
            metadata = yaml.safe_load(content.split("---")[1])
            assert isinstance(metadata, dict)
        except Exception as error:
            return {"errors": [{"message": str(error)}], "warnings": []}, 400
        return {"errors": [], "warnings": []}, 200

    def create(self, asked: dict[str, Any]) -> None:
        owner = asked.get("organization") or OWNER
        name = f"{owner}/{asked['name']}"
        if owner != OWNER:
            return self.answer({"error": f"You don't have the rights to create a model under the namespace {owner}"}, 403)
        if name in self.server.private:
            return self.answer({"error": "You already created this model repo", "url": f"{self.server.url}/{name}"}, 409)
        self.server.private[name] = asked.get("visibility") == "private" or bool(asked.get("private"))
        return self.answer({"url": f"{self.server.url}/{name}"})

    def commit(self, repo: str, body: bytes) -> None:
        files = self.server.files.setdefault(repo, {})
        for entry in map(json.loads, body.splitlines()):
            value = entry["value"]
            if entry["key"] == "file":
                files[value["path"]] = base64.b64decode(value["content"])
            elif entry["key"] == "lfsFile":
                files[value["path"]] = self.server.stored[value["oid"]]
        url = f"{self.server.url}/{repo}/commit/0"
        self.answer({"success": True, "commitUrl": url, "commitOid": "0" * 40})


@contextlib.contextmanager
def running() -> Iterator[Hub]:
    """A hub that stops at the end of the block, or with the process."""
    hub = Hub()
    thread = threading.Thread(target=hub.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    try:
        yield hub
    finally:
        hub.shutdown()
        hub.server_close()
        thread.join(5)


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    """A running hub that `huggingface_hub` takes for the real one, with a token. Large files go by LFS, not by Xet."""
    from huggingface_hub import close_session, constants

    with running() as server:
        monkeypatch.setattr(constants, "ENDPOINT", server.url)
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
        monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)
        monkeypatch.setenv("HF_TOKEN", TOKEN)
        yield server
        close_session()
