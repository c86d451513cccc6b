"""What is read from a run's folder, whatever it holds, and what of a command may be published."""

from __future__ import annotations

from pathlib import Path

import pytest
from omegaconf import OmegaConf

from oar_lightning.tracking.tracker import Tracker
from oar_lightning.wiring import run_folder
from oar_lightning.wiring.run_folder import (
    Origin,
    Parent,
    logged,
    note_origin,
    read_config,
    read_origin,
    without_home,
)


def put(path: Path, text: str | bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(text if isinstance(text, bytes) else text.encode())


def test_the_resolved_config_comes_before_the_composed_one(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    assert read_config(tmp_path) == {}
    assert "holds no config of a run (artifacts/config.yaml or .hydra/config.yaml)" in caplog.text
    put(tmp_path / ".hydra" / "config.yaml", "seed: 1\nsecret: ${oc.env:HOME}\n")
    assert read_config(tmp_path) == {"seed": 1, "secret": "${oc.env:HOME}"}, "nothing of this machine is read"
    put(tmp_path / "artifacts" / "config.yaml", "seed: 2\n")
    assert read_config(tmp_path) == {"seed": 2}


@pytest.mark.parametrize(
    "text", ["[", "- a\n", "", "!!python/object/apply:os.system ['touch broken']", b"\xff\xfe\x00", "[" * 700]
)
def test_files_that_hold_something_else(tmp_path: Path, text: str | bytes) -> None:
    for name in ("artifacts/config.yaml", ".hydra/config.yaml", "artifacts/origin.json", ".hydra/overrides.yaml"):
        put(tmp_path / name, text)
    assert read_config(tmp_path) == {}
    assert read_origin(tmp_path).command in (None, "python -m oar_lightning a")
    assert not (tmp_path / "broken").exists()


def test_an_origin_keeps_its_first_command_and_all_revisions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert read_origin(tmp_path) == Origin()
    put(tmp_path / ".hydra" / "overrides.yaml", "- +experiment=oar_g\n")
    assert read_origin(tmp_path) == Origin(["+experiment=oar_g"]), "of a run of before"
    tracker = Tracker(tmp_path, None)
    for revision, overrides in (("a", ["x=1"]), ("b", ["x=1", "resume=true"]), ("b", ["x=1", "resume=true"])):
        monkeypatch.setattr(run_folder, "git_revision", lambda revision=revision: revision)
        note_origin(tracker, overrides, {"training": None, "evaluation: chain": 8}, resumed=len(overrides) > 1)
    assert read_origin(tmp_path) == Origin(["x=1"], ["a", "b"], {"training": None, "evaluation: chain": 8})
    note_origin(tracker, ["x=2"], {})
    assert read_origin(tmp_path) == Origin(["x=2"], ["b"]), "a new run in the folder of one that never came to a checkpoint"


def test_an_origin_has_the_commands_of_later_starts_and_of_the_run_before(tmp_path: Path) -> None:
    first, fork, again = (Tracker(tmp_path / name, None) for name in ("first", "fork", "again"))
    for overrides, resumed in ((["x=1"], False), (["x=1", "resume=true"], True), (["x=1", "ckpt_path=run", "steps=8"], True)):
        note_origin(first, overrides, {}, resumed)
    origin = read_origin(first.run_dir)
    python = "python -m oar_lightning"
    both = f"{python} x=1\n{python} x=1 steps=8 ckpt_path=RUN_FOLDER"
    assert (origin.command, origin.parents) == (both, [])

    note_origin(fork, ["x=2", "resume=true", "resume_changed=true"], {}, False, Parent(8, ["x"], origin))
    note_origin(fork, ["x=2", "resume=true", "steps=12"], {}, True)
    note_origin(again, ["x=3"], {}, False, Parent(12, ["x", "y"], read_origin(fork.run_dir)))
    assert read_origin(again.run_dir).command == (
        f"{both}\n{python} x=2 ckpt_path=RUN_FOLDER resume_changed=true  # from step 8\n"
        f"{python} x=2 steps=12 ckpt_path=RUN_FOLDER\n{python} x=3 ckpt_path=RUN_FOLDER resume_changed=true  # from step 12"
    )
    assert [(parent.step, parent.changed) for parent in read_origin(again.run_dir).parents] == [(8, ["x"]), (12, ["x", "y"])]
    note_origin(again, ["x=3"], {}, False, Parent(12, ["x"], Origin()))
    assert str(read_origin(again.run_dir).command).startswith("# the command of the run before is not known\n")


def test_a_command_is_without_places_and_secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/ann")
    overrides = [
        "+experiment=oar_g",
        "policy.name=my policy",
        "data.train.paths=[/home/ann/train.jsonl]",
        "logger=none",
        "logger.tracking_uri=http://ann:pw@host",
        "hydra.run.dir=/home/ann/runs",
        "hydra/launcher=joblib",
        "output_root=/home/ann",
        "ckpt_path=x",
        "resume_changed=true",
        "+reward.terms.judge.api_key=sk-123",
        "+reward.terms.judge.url=https://ann:pw@judge/v1",
        "+reward.terms.judge.header=hf_abcdefghijklmnop",
        "scorer.token_budget=8",
    ]
    assert Origin(overrides).command == (
        "python -m oar_lightning +experiment=oar_g 'policy.name=my policy' 'data.train.paths=[~/train.jsonl]' "
        "'+reward.terms.judge.api_key=***' +reward.terms.judge.url=https://judge/v1 '+reward.terms.judge.header=hf_***' "
        "scorer.token_budget=8"
    )
    assert Origin().command is None


def test_a_logged_config_has_no_credentials() -> None:
    address = "http://me:word@127.0.0.1:5000/x?a=b"
    judge = {"api_key": "word", "url": "${logger.uri}"}
    cfg = OmegaConf.create({"seed": 1, "logger": {"uri": address}, "loggers": [{"uri": address}], "reward": {"judge": judge}})
    kept = OmegaConf.to_container(OmegaConf.create(logged(cfg)))
    bare = "http://127.0.0.1:5000/x?a=b"
    shown = {"judge": {"api_key": "***", "url": bare}}
    assert kept == {"seed": 1, "logger": {"uri": bare}, "loggers": [{"uri": bare}], "reward": shown}


@pytest.mark.parametrize(
    ("home", "text", "expected"),
    [
        ("/", "data/train=math", "data/train=math"),
        ("/root", "[/root/a, /rootfs/b, /mnt/root/c, /root]", "[~/a, /rootfs/b, /mnt/root/c, ~]"),
        (None, "/root/a", "/root/a"),
    ],
)
def test_the_home_folder_is_hidden_where_it_is_one(
    home: str | None, text: str, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def found() -> Path:
        if home is None:
            raise RuntimeError("Could not determine home directory.")
        return Path(home)

    monkeypatch.setattr(Path, "home", found)
    assert without_home(text) == expected
