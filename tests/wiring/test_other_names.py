"""Names of other libraries lead to settings that exist here."""

from __future__ import annotations

import pytest
from omegaconf import OmegaConf
from support.composing import composed

from oar_lightning.common.paths import conf_dir
from oar_lightning.wiring.other_names import OTHER_NAMES, OtherName, other_name

pytestmark = pytest.mark.usefixtures("hydra_conf")

ELSEWHERE = {
    "engine.gpu_memory_utilization": "engine=vllm",
    "data.train.paths": "data=files",
    "policy.name": "policy=hf",
    "engine.max_model_len": "engine=vllm",
    "push_to_hub": "task=export",
}
"""Settings of an option that is not the default."""


@pytest.mark.parametrize("name", OTHER_NAMES, ids=lambda name: name.theirs)
def test_what_is_written_here_exists(name: OtherName) -> None:
    for written in name.here.split():
        key, _, option = written.lstrip("+").partition("=")
        group = conf_dir() / key
        if group.is_dir():
            assert not option or (group / f"{option}.yaml").exists()
        else:
            block, _, last = key.rpartition(".")
            config = composed(*([ELSEWHERE[key]] if key in ELSEWHERE else []))
            assert last in (OmegaConf.select(config, block) if block else config).keys()  # noqa: SIM118  (`in` is False of ???)


def test_a_name_is_found_whole_before_by_its_end() -> None:
    assert other_name("data.max_response_length").here == "rollout.max_new_tokens"
    assert other_name("grpo.num_generations").library == "TRL"
    assert other_name("tau") is None
    assert other_name("actor_rollout_ref.rollout.name").here == "engine"
    assert other_name("reward.name") is None, "many keys end so"
    assert len({name.theirs for name in OTHER_NAMES}) == len(OTHER_NAMES)


def test_the_page_has_every_name() -> None:
    page = (conf_dir().parent / "docs" / "other_libraries.md").read_text()
    rows = [line for line in page.splitlines() if line.startswith("| `")]
    assert rows == [f"| `{name.theirs}` | `{name.here}` | {name.note + ' ' * bool(name.note)}|" for name in OTHER_NAMES]
