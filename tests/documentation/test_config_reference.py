"""The config reference is complete: held against configs as Hydra composes them."""

from __future__ import annotations

import importlib
import re
from types import ModuleType

import pytest
from omegaconf import OmegaConf
from support.composing import composed
from support.pages import ROOT

from oar_lightning.common.mappings import flatten
from oar_lightning.common.paths import conf_dir

pytestmark = pytest.mark.usefixtures("hydra_conf")


@pytest.fixture
def reference(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    pytest.importorskip("sphinx")
    monkeypatch.syspath_prepend(str(ROOT / "docs" / "_ext"))
    return importlib.import_module("config_reference")


CHOICES = [
    (),
    ("scorer=oar_g", "loss=dapo", "trainer=deepspeed_zero3_offload", "engine=vllm"),
    ("data=gsm8k", "policy=hf_lora", "policy.name=x", "scorer=oar_p_approximate", "data/prompt=chat"),
]


@pytest.mark.parametrize("overrides", CHOICES, ids=lambda o: o[0] if o else "defaults")
def test_every_key_of_a_run_is_in_it(overrides: tuple[str, ...], reference: ModuleType) -> None:
    keys = set(re.findall(r"^\| `([\w.]+)` \|", reference.config_reference(), re.MULTILINE))
    run = flatten(OmegaConf.to_container(composed(*overrides), resolve=False))  # type: ignore[arg-type]
    # the benchmark's variants are scorers, whose keys are in that group's sections
    wanted = {key for key in run if not re.search(r"(^|\.)_\w+_(\.|$)|^benchmark\.variants\.", key)}
    assert {key for key in wanted if not any(key == k or key.startswith(f"{k}.") for k in keys)} == set()


def test_every_file_has_a_heading(reference: ModuleType) -> None:
    headings = set(re.findall(r"^### `(.+?)`$", reference.config_reference(), re.MULTILINE))
    files = [path.relative_to(conf_dir()).with_suffix("") for path in conf_dir().rglob("*.yaml")]
    assert {f"{file.parent.as_posix()}={file.name}" for file in files if file.parent.parts} <= headings


def test_a_line_has_default_comment_and_docstring(reference: ModuleType) -> None:
    text = (
        "# words\ndefaults: [x]\n_target_: oar_lightning.credit.gates.BilevelGate\n"
        "tau: 0.3  # of mine\nlist: [1, '# no']  # yes\ninner:  # a block\n  key: null\n"
    )
    keys = reference.walk(text)
    assert [(k.path, k.default, k.comment) for k in keys] == [
        ("tau", "0.3", "of mine"),
        ("list", "[1, '# no']", "yes"),
        ("inner", "", "a block"),
        ("inner.key", "null", ""),
    ]
    assert reference.meaning(keys[0]).startswith("threshold between suppression and boost;")
    assert reference.meaning(keys[0]).endswith("<br>of mine")
    assert reference.meaning(keys[1]) == "yes"
