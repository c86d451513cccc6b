"""Uploads to a stand-in for the hub, and errors that name key and remedy and never the token."""

from __future__ import annotations

from pathlib import Path

import pytest
from huggingface_hub import constants
from support.hub_server import TOKEN, Hub

from oar_lightning.policy.push import HubRepo, PushError


def test_a_folder_s_files_go_to_a_private_repository(hub: Hub, tmp_path: Path) -> None:
    for name in ("config.json", "model.safetensors", "adapter/a[1].json", "mine.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(f"{name} " * 100)
    (tmp_path / "README.md").write_text("---\ntags: [x]\n---\n# A card\n")
    repo = HubRepo("ann/policy")
    repo.check()
    assert hub.requests == ["GET /api/whoami-v2"], "nothing is made before all else is known to be well"
    repo.create()
    assert hub.private == {"ann/policy": True}
    names = ["README.md", "config.json", "model.safetensors", "adapter/a[1].json"]
    assert repo.upload(tmp_path, names) == f"{hub.url}/ann/policy"
    assert hub.files["ann/policy"] == {name: (tmp_path / name).read_bytes() for name in names}, (
        "and no other file of the folder"
    )
    HubRepo("ann/policy", private=False).create()
    assert hub.private == {"ann/policy": True}, "one that exists stays as it is"
    (tmp_path / "config.json").write_text("{}")
    repo.upload(tmp_path, ["config.json"])
    assert hub.files["ann/policy"]["config.json"] == b"{}"


def refused(repo: HubRepo, *steps: str) -> str:
    *well, last = steps
    for step in well:
        getattr(repo, step)()
    with pytest.raises(PushError, match=rf"^push_to_hub={repo.name}: ") as caught:
        getattr(repo, last)()
    assert "\n" not in str(caught.value)
    assert TOKEN not in str(caught.value)
    assert caught.value.__cause__ is None
    return str(caught.value)


@pytest.mark.parametrize("name", ["", "policy", "a/b/c", "ann/po licy", "ann/-x", "../x", "ann/" + "x" * 200])
def test_a_name_that_is_none_is_refused_without_a_request(hub: Hub, name: str) -> None:
    assert "give <owner>/" in refused(HubRepo(name), "check")
    assert hub.requests == []


def test_offline_and_without_a_token(hub: Hub, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(constants, "HF_HUB_OFFLINE", True)
        assert "HF_HUB_OFFLINE keeps this process off the network; unset it" in refused(HubRepo("ann/p"), "check")
    monkeypatch.delenv("HF_TOKEN")
    monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(tmp_path / "none"))
    assert "there is no token; set HF_TOKEN, or log in with `hf auth login`" in refused(HubRepo("ann/p"), "check")
    assert hub.requests == []


def test_what_the_hub_refuses(hub: Hub, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert "the token may not write there" in refused(HubRepo("bob/p"), "check", "create")
    with monkeypatch.context() as patch:
        patch.setenv("HF_TOKEN", "hf_wrong")
        assert "the hub refuses the token" in refused(HubRepo("ann/p"), "check")
        patch.setenv("HF_TOKEN", f"{TOKEN}\xf6")  # no header can hold it
        assert "the token holds characters that no token has" in refused(HubRepo("ann/p"), "check")
    (tmp_path / "config.json").write_text("{}")
    hub.refused.add("POST /api/models/ann/p/commit")
    with pytest.raises(PushError, match=r"push_to_hub=ann/p: the hub refuses \(.*507.*correct what it names"):
        HubRepo("ann/p").upload(tmp_path, ["config.json"])


def test_a_transport_that_shows_the_token_is_not_repeated(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(self: object) -> None:
        raise ValueError(f"Illegal header value b'Bearer {TOKEN}\\x01' or {TOKEN}")

    monkeypatch.setattr("huggingface_hub.HfApi.whoami", fail)
    assert "Illegal header value b'Bearer ***' or ***" in refused(HubRepo("ann/p"), "check")


def test_a_hub_out_of_reach(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    assert "is the hub within reach (HF_ENDPOINT)? leave push_to_hub out to export only" in refused(HubRepo("ann/p"), "check")
