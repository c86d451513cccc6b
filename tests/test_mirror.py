"""tests/<room>/test_x.py is about oar_lightning/<room>/x.py; tests of whole processes are in tests/system."""

from __future__ import annotations

from pathlib import Path

import pytest

import oar_lightning

HERE = Path(__file__).parent
PACKAGE = Path(oar_lightning.__file__).parent

ELSEWHERE = {"documentation", "golden", "reports", "support", "system"}
"""The pages, expected numbers, tests of reports/, helpers, and tests of whole processes."""

ABOUT_MORE_THAN_A_FILE = {
    "answers/test_corpus.py": "answer spans and verdicts on recorded texts",
    "credit/scorers/test_agreement.py": "scorers against each other, with the built-in policy",
    "credit/scorers/test_contract.py": "what scorers of reasoning tokens owe their caller, probe by probe",
    "credit/scorers/test_out_of_memory.py": "scorers that go on in less memory",
    "credit/test_contract.py": "what every scorer of conf/scorer owes its caller",
    "credit/test_corpus.py": "segments of recorded texts",
    "rollout/test_engines.py": "cached.py and hf.py, which must sample alike",
    "rollout/test_out_of_memory.py": "engines that go on in less memory",
    "tasks/test_recipes.py": "conf/experiment/paper_*.yaml",
    "tasks/test_tables.py": "every table that a command prints, those of evaluation/ included",
    "training/callbacks/test_trial_callbacks.py": "what a sweep asks of a run: divergence.py, seconds.py, trial.py",
    "training/test_fine_tuning.py": "LoRA and full fine-tuning from the rollouts to the export",
    "training/test_out_of_memory.py": "steps that go on in less memory",
    "wiring/test_class_defaults.py": "conf/ and the classes that it names",
    "wiring/test_configs.py": "conf/",
    "wiring/test_data_configs.py": "conf/data/",
    "wiring/test_sweep_files.py": "sweeps/",
}

FILES = sorted(path.relative_to(HERE) for path in HERE.rglob("test_*.py") if path.parent != HERE)
MIRRORED = [path for path in FILES if path.parts[0] not in ELSEWHERE]


def has_its_file(test: Path) -> bool:
    """Whether there is a file or a folder of that name; `test_<room>.py` is about the room as a whole."""
    name, room = test.stem.removeprefix("test_"), PACKAGE / test.parent
    return (room / f"{name}.py").is_file() or (room / name).is_dir() or (room.is_dir() and room.name == name)


@pytest.mark.parametrize("test", MIRRORED, ids=str)
def test_a_test_file_lies_where_its_file_does(test: Path) -> None:
    if str(test) in ABOUT_MORE_THAN_A_FILE:
        assert (PACKAGE / test.parent).is_dir(), f"no room {test.parent}"
        assert not has_its_file(test), "it has a file of its own: take it off the list"
    else:
        assert has_its_file(test), (
            f"no oar_lightning/{test.parent}/{test.stem.removeprefix('test_')}.py; move tests/{test} beside its file's tests, "
            "or to tests/system if it starts processes"
        )


def test_the_list_names_files_that_there_are() -> None:
    assert set(ABOUT_MORE_THAN_A_FILE) <= {str(path) for path in MIRRORED}
    assert {path.parts[0] for path in FILES} >= {"reports", "system"}
