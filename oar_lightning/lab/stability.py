"""Whether scores hang on the policy and on nothing else: small changes of the input, and layers without what they learned."""

from __future__ import annotations

import contextlib
import dataclasses
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from oar_lightning.common.activity import activity
from oar_lightning.common.randomness import generator
from oar_lightning.common.ranges import PositiveFloat, PositiveInt, checked
from oar_lightning.common.ranks import rank_correlation
from oar_lightning.lab.types import Curve, Measure
from oar_lightning.policy.language_model import base_model
from oar_lightning.types import Rollouts

Score = Callable[[Any, Rollouts], Tensor]
"""(model, rollouts) -> scores [B S]; the same draws at each call."""

DIRECTIONS = 4096
"""Different directions in which embeddings are moved; tokens whose ids are equal modulo this number share one."""


@checked("lab.stability")
@dataclass(frozen=True)
class Stability:
    """Estimators are run again on some completions: with embeddings moved, and with layers shuffled.

    Args:
        completions: the most completions, those of the first problems; a problem's completions stay together.
        radius: how far embeddings are moved, in mean lengths of embeddings.
        draws: directions in which they are moved.
        stages: in so many steps the layers are shuffled, from the last on.
    """

    completions: PositiveInt = 8
    radius: PositiveFloat = 0.05
    draws: PositiveInt = 2
    stages: PositiveInt = 2

    def __call__(
        self, model: Any, rollouts: Rollouts, scorers: Mapping[str, Score], seed: int
    ) -> tuple[list[Measure], list[Curve]]:
        """The measures of all estimators. The rollouts are those that are to be scored again."""
        measures = max_sensitivity(model, rollouts, scorers, self.radius, self.draws, seed)
        measure, curve = randomized_layers(model, rollouts, scorers, self.stages, seed)
        return [*measures, measure], [curve]


def max_sensitivity(
    model: Any, rollouts: Rollouts, scorers: Mapping[str, Score], radius: float = 0.05, draws: int = 4, seed: int = 0
) -> list[Measure]:
    """The largest ||I(x + d) - I(x)|| / ||I(x)|| of a completion over random d, and the same by ranks: the largest
    1 - Spearman (Yeh et al. 2019, arXiv 1901.09392).

    d moves the embedding of each token of the vocabulary by `radius` times the mean length of embeddings, in a random
    direction. NaN where all scores of the completion are 0, and by ranks where they are all the same. `scorers` are run
    1 + `draws` times.
    """
    bare = dataclasses.replace(rollouts, prediction_states=None)  # the kept states are those of the embeddings as they are
    sizes: dict[str, tuple[float, ...]] = {}
    orders: dict[str, tuple[float, ...]] = {}
    with activity("sensitivity", len(scorers)) as advance:
        for name, score in scorers.items():
            clean = score(model, bare)
            moved = []
            for draw in range(draws):
                with moved_embeddings(model, radius, seed + draw):
                    moved.append(score(model, bare))
            sizes[name] = largest(bare, clean, moved, distance)
            orders[name] = largest(bare, clean, moved, lambda clean, other: 1 - correlation(clean, other))
            advance(1)
    words = f"embeddings moved by {100 * radius:g} % of their length, the largest of {draws}"
    return [
        Measure("stability.sensitivity", f"change of the scores over their size, {words}", "low", sizes),
        Measure("stability.rank_sensitivity", f"1 - Spearman of the scores, {words}", "low", orders),
    ]


def randomized_layers(
    model: Any, rollouts: Rollouts, scorers: Mapping[str, Score], stages: int = 4, seed: int = 0
) -> tuple[Measure, Curve]:
    """How like their former selves the ranks of scores are when the policy's layers are shuffled one after the other, from the
    last on (Adebayo et al. 2018, arXiv 1810.03292): Spearman's correlation after all of them, and its mean over completions
    after each of `stages`. A completion whose scores are all the same has none.

    A layer is shuffled by a random permutation of each of its weights' entries. 0 is expected of scores that tell what the
    policy has learned; those that stay alike do not. The embeddings, the last norm and the head stay.
    """
    bare = dataclasses.replace(rollouts, prediction_states=None)
    layers = layers_of(model)
    depths = sorted({math.ceil(len(layers) * (i + 1) / stages) for i in range(stages)})
    clean = {name: score(model, bare) for name, score in scorers.items()}
    alike: dict[str, list[tuple[float, ...]]] = {name: [] for name in scorers}
    with activity("randomized layers", len(depths) * len(scorers)) as advance:
        for depth in depths:
            with shuffled(layers[len(layers) - depth :], seed):
                for name, score in scorers.items():
                    now = score(model, bare)
                    alike[name].append(largest(bare, clean[name], [now], correlation))
                    advance(1)
    fractions = (0.0, *(depth / len(layers) for depth in depths))
    means = {name: (1.0, *(mean(values) for values in of_name)) for name, of_name in alike.items()}
    title = "Spearman with the scores of the policy as it is"
    return (
        Measure(
            "stability.randomized_layers", f"{title}, all its layers shuffled", "low", {n: v[-1] for n, v in alike.items()}
        ),
        Curve("stability.randomized_layers", f"{title}; fraction of its layers shuffled, from the last on", fractions, means),
    )


def largest(
    rollouts: Rollouts,
    clean: Float[Tensor, "B S"],
    others: Sequence[Float[Tensor, "B S"]],
    compare: Callable[[Tensor, Tensor], float],
) -> tuple[float, ...]:
    """Of each row, the largest comparison of its reasoning tokens with those of any other; NaN with fewer than two, or
    where a comparison is."""
    found = []
    for row, own in enumerate(rollouts.reasoning_mask):
        values = [compare(clean[row, own], other[row, own]) for other in others]
        known = int(own.sum()) > 1 and not any(map(math.isnan, values))
        found.append(max(values) if known else math.nan)
    return tuple(found)


def distance(clean: Float[Tensor, " n"], other: Float[Tensor, " n"]) -> float:
    """||other - clean|| / ||clean||; NaN for clean scores that are all 0."""
    size = float(clean.double().norm())
    return float((other.double() - clean.double()).norm()) / size if size else math.nan


def correlation(clean: Float[Tensor, " n"], other: Float[Tensor, " n"]) -> float:
    """Spearman's; 0 where only the other scores are all the same, NaN where the clean ones have no order or one is NaN."""
    if not bool((clean + other).isfinite().all()) or bool((clean == clean[:1]).all()):
        return math.nan
    return 1.0 if torch.equal(clean, other) else rank_correlation(clean, other)  # of the same ones not one bit less


def mean(values: tuple[float, ...]) -> float:
    return float(torch.tensor(values, dtype=torch.float64).nanmean())


@contextlib.contextmanager
def moved_embeddings(model: Any, radius: float, seed: int) -> Iterator[None]:
    """The embeddings that the model reads are moved, inside the block; those that a head shares with them are not."""
    module = model.get_input_embeddings()
    weight = module.weight
    count = min(DIRECTIONS, len(weight))
    directions = torch.randn(count, weight.shape[1], generator=generator("moved", seed))
    with torch.no_grad():
        length = (
            radius * torch.stack([part.double().norm(dim=1).sum() for part in weight.split(DIRECTIONS)]).sum() / len(weight)
        )
        shift = (directions / directions.norm(dim=1, keepdim=True) * float(length)).to(weight)

    def move(_: Any, inputs: tuple[Tensor, ...], output: Tensor) -> Tensor:
        return output + shift[inputs[0] % count].to(output)

    hook = module.register_forward_hook(move)
    try:
        yield
    finally:
        hook.remove()


def layers_of(model: Any) -> list[torch.nn.Module]:
    """The decoder's layers, from the first to the last: its longest list of modules.

    Raises:
        ValueError: where it has none.
    """
    children = base_model(model).get_decoder().children()
    layers: list[torch.nn.Module] = max((list(m) for m in children if isinstance(m, torch.nn.ModuleList)), key=len, default=[])
    if not layers:
        raise ValueError(f"{type(base_model(model)).__name__} has no list of layers to shuffle; set lab.stability=null")
    return layers


@contextlib.contextmanager
def shuffled(layers: list[torch.nn.Module], seed: int) -> Iterator[None]:
    """The entries of each parameter of the layers are in a random order, inside the block. A copy of them is kept."""
    parameters = [p for layer in layers[::-1] for p in layer.parameters()]  # the last layer is the same whatever the depth
    kept = [p.detach().clone() for p in parameters]
    rng = generator("shuffled", seed)
    try:
        with torch.no_grad():
            for parameter in parameters:
                order = torch.randperm(parameter.numel(), generator=rng).to(parameter.device)
                parameter.copy_(parameter.flatten()[order].view_as(parameter))
        yield
    finally:
        with torch.no_grad():
            for parameter, former in zip(parameters, kept, strict=True):
                parameter.copy_(former)
