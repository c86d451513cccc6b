"""A problem's extra columns: read-only, and whole after everything that carries a problem elsewhere."""

from __future__ import annotations

import copy
import dataclasses
import io
import json
import pickle
from typing import Any

import pytest
import torch

from oar_lightning.training.experience import Experience
from oar_lightning.types import Credit, Extra, MathProblem, Rollouts

ROW = {"difficulty": 3, "tags": ["algebra", {"of": ["x"]}], "meta": {"by": None}}
PROBLEM = MathProblem("1+1?", "2", extra=ROW)


def test_it_reads_like_a_mapping_and_cannot_be_changed() -> None:
    extra: Any = PROBLEM.extra
    assert (extra["difficulty"], extra["tags"][1]["of"][0], extra.get("none", 7)) == (3, "x", 7)
    assert list(extra) == list(ROW)
    assert json.loads(json.dumps(extra.thawed())) == ROW
    with pytest.raises(TypeError):
        extra["difficulty"] = 4
    with pytest.raises(TypeError):
        extra["tags"][1]["of"] = ()
    with pytest.raises(AttributeError):
        extra["tags"].append("geometry")
    ROW["tags"].append("geometry")  # type: ignore[attr-defined]
    assert len(extra["tags"]) == 2, "nor through what it was made of"
    ROW["tags"].pop()  # type: ignore[attr-defined]
    with pytest.raises(KeyError, match=r"no extra column 'dificulty'; there are \['difficulty', 'tags', 'meta'\]"):
        extra["dificulty"]


def test_it_survives_copies_pickles_and_hashes() -> None:
    for other in (pickle.loads(pickle.dumps(PROBLEM)), copy.deepcopy(PROBLEM), dataclasses.replace(PROBLEM)):
        assert other == PROBLEM
        assert hash(other) == hash(PROBLEM)
    assert MathProblem("1+1?", "2") != PROBLEM
    assert MathProblem("1+1?", "2").extra == Extra({})


def test_a_checkpoint_holds_it_as_plain_data() -> None:
    """torch's loader of checkpoints refuses every class that is not its own."""
    mask = torch.ones(2, 3, dtype=torch.bool)
    rollouts = Rollouts(mask.long(), *[mask] * 4, torch.ones(2, 1), torch.ones(2), 2, problems=(PROBLEM, PROBLEM))
    zeros = torch.zeros(2, 3)
    file = io.BytesIO()
    torch.save(Experience(rollouts, Credit(zeros, zeros, zeros)).state_dict(), file)
    state = torch.load(io.BytesIO(file.getvalue()), weights_only=True)
    assert state["rollouts"]["problems"][0]["extra"] == ROW
    assert Experience.from_state_dict(state, torch.device("cpu")).rollouts.problems == (PROBLEM, PROBLEM)
    del state["rollouts"]["problems"][0]["extra"]  # as in a checkpoint of before
    assert Experience.from_state_dict(state, torch.device("cpu")).rollouts.problems[0].extra == {}
