"""Every command on a page composes and passes the checks, and the example of a plug-in works as it is printed."""

from __future__ import annotations

import functools
import itertools
import math
import re
import shlex
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import IntervalSweep
from support.composing import checked, composed_whole, settings
from support.pages import DOCS, PAGES, ROOT, commands, name_of, read
from support.toy import rollouts_of
from transformers import AutoTokenizer

from oar_lightning.answers.reward import Completion
from oar_lightning.common.paths import conf_dir
from oar_lightning.sweep.search_space import SearchSpace
from oar_lightning.wiring.lightning_options import own_callbacks

pytestmark = pytest.mark.usefixtures("hydra_conf")


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_commands_compose(page: Path) -> None:
    for arguments in commands(read(page)):
        of_another_test = is_an_experiment(arguments) or "hydra.searchpath" in " ".join(arguments)  # that one is below
        if not of_another_test:
            compose(*arguments)


def is_an_experiment(arguments: Sequence[str]) -> bool:
    """Whether a command is an experiment as it stands, which tests/wiring/test_configs.py composes and builds."""
    name = arguments[0].removeprefix("+experiment=") if len(arguments) == 1 else ""
    return bool(name) and (conf_dir() / "experiment" / f"{name}.yaml").is_file()


@pytest.mark.parametrize(
    "folder", sorted(path for path in (*conf_dir().iterdir(), ROOT / "sweeps") if path.is_dir()), ids=name_of
)
def test_commands_of_config_files_compose(folder: Path) -> None:
    """Those that the first lines of a file name."""
    for path in sorted(folder.rglob("*.yaml")):
        for line in re.findall(r"^# (python -m oar_lightning .*)$", path.read_text(), re.MULTILINE):
            arguments = shlex.split(re.sub("<[^>]*>", "x", line), comments=True)[3:]
            if not is_an_experiment(arguments):
                compose(*arguments)


@functools.cache
def compose(*arguments: str) -> None:
    """Each command once: many stand on several pages."""
    several = bool({"-m", "--multirun"} & set(arguments))
    overrides = list(itertools.takewhile(lambda argument: not argument.startswith("--"), [a for a in arguments if a != "-m"]))
    if not several:
        checked(*overrides)
    elif any(override.startswith("+sweeps=") for override in overrides):
        compose_a_sweep(overrides)
    else:
        checked(*map(first_choice, overrides))


def compose_a_sweep(overrides: list[str]) -> None:
    """The first trial of a sweep, without the settings of launchers, which are optional."""
    overrides = [o for o in overrides if not o.startswith(("hydra/launcher", "hydra.launcher"))]
    of_hydra = [o for o in overrides if o.startswith(("hydra.", "hydra/"))]
    others = [o for o in overrides if o not in of_hydra]
    (name,) = [o for o in others if o.startswith("+sweeps=")]
    space = SearchSpace.of(composed_whole(name, *of_hydra), others)
    settings(*space.overrides(next(space.examples())))


def first_choice(override: str) -> str:
    """`seed=0,1,2` -> `seed=0`, `gate.tau=interval(0.2,0.6)` -> `gate.tau=0.2`."""
    parsed = OverridesParser.create().parse_override(override)
    if not parsed.is_sweep_override():
        return override
    value = parsed.value()
    first = value.start if isinstance(value, IntervalSweep) else next(parsed.sweep_string_iterator())
    return f"{parsed.get_key_element()}={first}"


def test_there_are_commands_of_every_kind() -> None:
    """What is read off the pages is not empty by mistake."""
    found = [arguments for page in PAGES for arguments in commands(read(page))]
    assert len(found) > 80
    tasks = {a.removeprefix("task=") for arguments in found for a in arguments if a.startswith("task=")}
    assert tasks == {"audit", "benchmark", "decontaminate", "evaluate", "export", "lab", "plan", "report", "score", "sync"}
    assert sum("+sweeps=" in " ".join(arguments) for arguments in found) > 5
    assert sum("trainer.num_nodes=2" in arguments for arguments in found) == 4, "those of torchrun and srun"


def test_the_scorer_of_the_page_plugs_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = read(ROOT / "docs" / "extending.md")
    (code,) = re.findall(r"^```python\n(# my_credit\.py\n.*?)^```", page, re.MULTILINE | re.DOTALL)
    (config,) = re.findall(r"`my_conf/scorer/digits\.yaml`:\n```yaml\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    (arguments,) = [a for a in commands(page) if "scorer=digits" in a]
    (tmp_path / "my_credit.py").write_text(code)
    (tmp_path / "my_conf" / "scorer").mkdir(parents=True)
    (tmp_path / "my_conf" / "scorer" / "digits.yaml").write_text(config)
    monkeypatch.syspath_prepend(str(tmp_path))
    scorer = settings(*[argument.replace("$PWD", str(tmp_path)) for argument in arguments]).method.scorer
    assert type(scorer).__name__ == "DigitScorer"
    policy = AutoTokenizer.from_pretrained(ROOT / "oar_lightning" / "assets" / "chain")
    assert scorer.token_ids == policy.convert_tokens_to_ids(list("0123456789"))
    rollouts = rollouts_of([{"before": [20], "reasoning": [16, 17, 26, 27], "answer": [18]}])
    with torch.device("meta"):  # where a tensor lands whose device is not given
        scores = scorer(None, rollouts)
    assert scores[rollouts.reasoning_mask].tolist() == [0, 1, 1, 0]
    assert scores.sum() == 2


def test_the_data_of_the_page_plug_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = read(ROOT / "docs" / "extending.md")
    (code,) = re.findall(r"^```python\n(# my_data\.py\n.*?)^```", page, re.MULTILINE | re.DOTALL)
    (config,) = re.findall(r"`my_conf/data/train/sums\.yaml`:\n```yaml\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    (arguments,) = [a for a in commands(page) if "data/train=sums" in a]
    (whole,) = re.findall(r"`'(~data\.train)' '(\+data\.train=.*?)'`", page)
    (evaluated,) = re.findall(r"`'(\+data\.evaluation\.sums=.*?)'`", page)
    (tmp_path / "my_data.py").write_text(code)
    (tmp_path / "my_conf" / "data" / "train").mkdir(parents=True)
    (tmp_path / "my_conf" / "data" / "train" / "sums.yaml").write_text(config)
    monkeypatch.syspath_prepend(str(tmp_path))
    for words in ([argument.replace("$PWD", str(tmp_path)) for argument in arguments], ["+experiment=grpo", *whole]):
        built = settings(*words, evaluated)
        assert built.train is not None
        for problems in (built.train, built.eval_sets["sums"]):
            found = list(problems)
            assert len(found) == 81
            assert all(sum(map(int, re.findall(r"\d+", one.question))) == int(one.answer) for one in found)


def test_the_reward_of_the_page_reads_its_column(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = read(ROOT / "docs" / "rewards.md")
    (code,) = re.findall(r"^```python\n(# my_rewards\.py\n.*?)^```", page, re.MULTILINE | re.DOTALL)
    (arguments,) = [a for a in commands(page) if "+reward.weights.lines=0.1" in a]
    (tmp_path / "my_rewards.py").write_text(code)
    (tmp_path / "train.jsonl").write_text('{"problem": "1+1?", "answer": "2", "solution": "", "steps": 2}\n')
    (tmp_path / "test.jsonl").write_text('{"problem": "2+2?", "answer": "4", "solution": ""}\n')
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.chdir(tmp_path)
    built = settings(*arguments)
    assert built.train is not None
    with_steps, without = next(iter(built.train)), next(iter(built.eval_sets["test"]))
    completions = [Completion(text, "2", False, 9) for text in ("a\nb\n", "a\nb\nc", "", "a")]
    terms, _ = built.rewards([*[with_steps] * 3, without], completions)
    assert terms[:, list(built.rewards.terms).index("lines")].tolist() == pytest.approx([0, -0.5, -1, math.nan], nan_ok=True)
    assert built.rewards.weight_vector()[-1] == pytest.approx(0.1)


def test_the_callback_of_the_page_plugs_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    page = read(ROOT / "docs" / "extending.md")
    (code,) = re.findall(r"^```python\n(# my_callback\.py\n.*?)^```", page, re.MULTILINE | re.DOTALL)
    (config,) = re.findall(r"`my_conf/callbacks/announce\.yaml`:\n```yaml\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    (arguments,) = [a for a in commands(page) if "callbacks=announce" in a]
    (tmp_path / "my_callback.py").write_text(code)
    (tmp_path / "my_conf" / "callbacks").mkdir(parents=True)
    (tmp_path / "my_conf" / "callbacks" / "announce.yaml").write_text(config)
    monkeypatch.syspath_prepend(str(tmp_path))
    (callback,) = own_callbacks(checked(*[argument.replace("$PWD", str(tmp_path)) for argument in arguments]))
    assert (type(callback).__name__, callback.above) == ("Announce", 0.8)
    for step, accuracy in ((1, 0.5), (2, 0.85), (3, 0.9)):
        callback.on_train_batch_end(SimpleNamespace(callback_metrics={callback.metric: accuracy}, global_step=step), None)
    assert capsys.readouterr().out == "step 2: eval/chain/avg_at_4 is 0.85\n"


@pytest.mark.parametrize("page", [page for page in DOCS if page.stem not in ("index", "api")], ids=name_of)
def test_a_page_opens_with_a_command(page: Path) -> None:
    opening = read(page).split("\n## ")[0]
    found = re.search(r"^```\w*\n(.*)", opening, re.MULTILINE)
    assert found is not None
    if target := re.match(r"make ([\w-]+)", found[1]):
        assert re.search(rf"^{target[1]}:", read(ROOT / "Makefile"), re.MULTILINE)
    else:
        assert found[1].startswith("python -m oar_lightning ")
