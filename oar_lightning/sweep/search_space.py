"""The search space of a sweep, read from Hydra's overrides."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override, Quote, QuotedString, RangeSweep, Transformer, ValueType
from hydra.errors import HydraException
from omegaconf import DictConfig

from oar_lightning.common.config_check import ConfigError
from oar_lightning.sweep.process import quoted


class SearchSpace:
    """The parameters that a sweep varies (`space`) and the overrides that its trials share (`fixed`), from the sweep file and
    the command line.

    The grid sampler takes `choice` and `range` sweeps (which end before their stop, as everywhere in Hydra); other samplers
    also take intervals.
    """

    def __init__(self, overrides: Mapping[str, Override], is_grid: bool) -> None:
        from optuna.distributions import CategoricalDistribution

        self.is_grid = is_grid
        self.fixed = [o.input_line for o in overrides.values() if not o.is_sweep_override()]
        self.space: dict[str, Any] = {}
        for key, override in overrides.items():
            if not override.is_sweep_override():
                continue
            if is_grid and override.is_interval_sweep():
                raise ConfigError(
                    f"{override.input_line}: a grid has no intervals; list the values with choice(...), or set "
                    "hydra/sweeper/sampler=tpe"
                )
            self.space[key] = (
                CategoricalDistribution(_choices(override))
                if is_grid or override.is_choice_sweep()
                else _distribution(override)
            )

    @classmethod
    def of(cls, config: DictConfig, arguments: Sequence[str]) -> SearchSpace:
        """The search space of `hydra.sweeper.params` and the command's overrides, of which the latter win."""
        sweeper = config.hydra.sweeper
        for key in ("search_space", "custom_search_space"):
            if sweeper[key] is not None:
                raise ConfigError(f"hydra.sweeper.{key} is not supported; use hydra.sweeper.params")
        lines = [f"{key}={value}" for key, value in (sweeper.params or {}).items()]
        by_key: dict[str, Override] = {}
        for override in OverridesParser.create().parse_overrides([*lines, *arguments]):
            if override.value_type == ValueType.GLOB_CHOICE_SWEEP:
                raise ConfigError(f"{override.input_line}: a study takes no glob; list the names with choice(...)")
            key = config_key(override.get_key_element())
            by_key.pop(key, None)  # a later override also takes the later place in the order
            by_key[key] = override
        named = {override.get_key_element(): override for override in by_key.values()}
        return cls(named, str(sweeper.sampler._target_).endswith(".GridSampler"))

    @property
    def points(self) -> dict[str, list[Any]]:
        """Choices of each parameter of a grid."""
        return {name: list(distribution.choices) for name, distribution in self.space.items()}

    def overrides(self, values: Mapping[str, Any], folder: Path | None = None) -> list[str]:
        """A trial's overrides, with those that set its folder where one is given."""
        lines = [*self.fixed, *(f"{name}={value}" for name, value in values.items())]
        if folder is not None:
            lines += [f"hydra.sweep.dir={quoted(folder.parent)}", f"hydra.sweep.subdir={folder.name}"]
        return lines

    def describe(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Sampled values as in the config, by dotted key."""
        parser = OverridesParser.create()
        shown: dict[str, Any] = {}
        for name, value in values.items():
            shown |= _flat(config_key(name), parser.parse_override(f"{name}={value}").value())
        return shown

    def examples(self) -> Iterator[dict[str, Any]]:
        """Points that together contain every choice and both ends of every interval."""
        first = {name: d.choices[0] if hasattr(d, "choices") else d.low for name, d in self.space.items()}
        yield first
        for name, distribution in self.space.items():
            others = distribution.choices[1:] if hasattr(distribution, "choices") else (distribution.high,)
            yield from (first | {name: value} for value in others if value != first[name])


def _choices(override: Override) -> list[Any]:
    """The values of a choice or range, texts as overrides have to write them."""
    return [_written(x) if isinstance(x, str) else Transformer.encode(x) for x in override.sweep_iterator()]


def _written(text: str) -> str:
    """Texts that would not be read as one value are quoted; numbers in quotes are numbers, as in Hydra's own sweeps."""
    try:
        read = OverridesParser.create().parse_override(f"key={text}")
        plain = not read.is_sweep_override() and not isinstance(read.value(), dict | list)
    except HydraException:
        plain = False
    return text if plain else QuotedString(text, Quote.single).with_quotes()


def _distribution(override: Override) -> Any:
    from hydra_plugins.hydra_optuna_sweeper._impl import create_optuna_distribution_from_override

    value = override.value()
    try:
        if isinstance(value, RangeSweep) and not value.shuffle:
            return _of_range(value)
        return create_optuna_distribution_from_override(override)
    except ValueError as error:
        raise ConfigError(f"{override.input_line}: {error}; give an interval that rises, or choice(...)") from error


def _of_range(sweep: RangeSweep) -> Any:
    """The values that a grid takes: hydra-optuna-sweeper's own distribution has the range's stop, too."""
    from optuna.distributions import DiscreteUniformDistribution, IntUniformDistribution

    count = len(list(sweep.range()))
    if not count:
        raise ValueError("no value is in this range")
    start, step = Decimal(str(sweep.start)), Decimal(str(sweep.step))  # else the last value is lost by rounding
    low, high = sorted((start, start + (count - 1) * step))
    if isinstance(sweep.start, int) and isinstance(sweep.step, int):
        return IntUniformDistribution(int(low), int(high), abs(sweep.step))
    return DiscreteUniformDistribution(float(low), float(high), float(abs(step)))


def config_key(key: str) -> str:
    """The key of an override without its `+`, `++` or `~`."""
    return key.lstrip("+~")


def _flat(name: str, value: Any) -> dict[str, Any]:
    if isinstance(value, dict):
        return {k: v for key, inner in value.items() for k, v in _flat(f"{name}.{_text(key)}", inner).items()}
    return {name: _text(value)}


def _text(value: Any) -> Any:
    return value.text if isinstance(value, QuotedString) else value
