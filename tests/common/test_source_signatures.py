"""What the source says of a signature, held against what Python says after the import."""

from __future__ import annotations

import inspect
import re
import typing
from pydoc import locate

import pytest

from oar_lightning.common.config_check import ConfigError, check_targets
from oar_lightning.common.paths import conf_dir
from oar_lightning.common.ranges import hints_of
from oar_lightning.common.source_signatures import source_signature

TARGETS = sorted(
    {t for p in conf_dir().rglob("*.yaml") for t in re.findall(r"_target_: ((?:oar_|lightning|torch)[\w.]+)", p.read_text())}
)

OTHERS = {
    "oar_lightning.training.callbacks.early_stopping.EarlyStopping",
    "oar_lightning.wiring.hydra_output.NoteFolders",
}
"""Their base classes are another package's."""


@pytest.mark.parametrize("target", TARGETS)
def test_the_source_says_what_python_says(target: str) -> None:
    found = source_signature(target)
    if target in OTHERS:
        assert found is None
        return
    assert found is not None
    parameters, hints, _ = found
    imported: typing.Any = locate(target)
    truth = inspect.signature(imported).parameters
    assert list(parameters) == list(truth)
    assert [p.default is p.empty for p in parameters.values()] == [p.default is p.empty for p in truth.values()]
    true_hints = hints_of(imported)
    texts = {name: repr(hint) for name, hint in hints.items() if "ForwardRef" not in repr(hint)}
    assert texts == {name: repr(true_hints[name]) for name in texts}
    plain = {name for name, hint in true_hints.items() if hint in (int, float, str, bool, int | None, str | None)}
    assert plain & set(truth) <= set(hints)


@pytest.mark.parametrize(
    "target",
    [
        "mlflow.MlflowClient",
        "torch.nn.Linear",
        "builtins.dict",
        "oar_lightning.nothing",
        "oar_lightning.credit.gates.Nothing",
        "x",
        "",
    ],
)
def test_others_are_left_to_the_check_after_the_imports(target: str) -> None:
    assert source_signature(target) is None


def test_a_function() -> None:
    found = source_signature("oar_lightning.common.config_check.check_keys")
    assert found is not None
    assert list(found[0]) == ["present", "known", "where"]
    assert found[1]["where"] is str


@pytest.mark.parametrize(
    ("node", "message"),
    [
        ({"tua": 0.5}, "unknown key gate.tua; did you mean gate.tau"),
        (
            {"tau": "much"},
            "gate.tau is a quantile (with gate.threshold=absolute a normalised score) and must be a number in [0, 1]",
        ),
        ({"beta": -1}, "gate.beta is the slope of the boost and must be finite and >= 0, got -1"),
        ({"mode": "all"}, "gate.mode must be one of both"),
    ],
)
def test_the_same_message_before_and_after_the_imports(node: dict[str, object], message: str) -> None:
    config = {"gate": {"_target_": "oar_lightning.credit.gates.BilevelGate", **node}}
    told = []
    for imported in (False, True):
        with pytest.raises(ConfigError) as error:
            check_targets(config, import_them=imported)
        told.append(str(error.value))
    assert told[0] == told[1]
    assert told[0].startswith(message)
