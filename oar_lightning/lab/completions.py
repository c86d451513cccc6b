"""The completions that a lab studies: sampled, or read from files; then judged and seen by the policy in the same way."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable, Iterable, Sequence

import numpy as np
import torch

from oar_lightning.answers.verifier import Verdict
from oar_lightning.common.randomness import derive_seed
from oar_lightning.credit.freedom import FREE_BELOW
from oar_lightning.credit.predictions import predictions
from oar_lightning.inspection.by_problem import advantages_by_problem, gold_only, group_by_problem, usable, verdicts
from oar_lightning.inspection.recorded import EncodedCompletion, RecordedCompletion, encode_recorded, to_generation
from oar_lightning.lab.store import Store
from oar_lightning.lab.types import Studied
from oar_lightning.objective.advantage import AdvantageConfig
from oar_lightning.policy.pretrained import Policy
from oar_lightning.policy.token_budget import unset_budget
from oar_lightning.rollout import RolloutStage, SamplingConfig
from oar_lightning.rollout.assemble import drawn_at
from oar_lightning.rollout.sampling import encode_prompts
from oar_lightning.types import MathProblem

UNIT = 8
"""Problems sampled, and kept, at once."""

Groups = list[list[EncodedCompletion]]
"""The completions of each problem."""


def sample(
    policy: Policy,
    stage: RolloutStage,
    sampling: SamplingConfig,
    problems: Sequence[MathProblem],
    samples: int,
    seed: int,
    store: Store,
    advance: Callable[[int], None],
) -> Groups:
    """`samples` completions of each problem. The draws depend on the seed and the problem's place.

    `advance` gets the number of completions that were just sampled or found in the store.
    """
    groups: Groups = []
    bare = dataclasses.replace(sampling, keep_states=False)  # only tokens are kept
    for start in range(0, len(problems), UNIT):
        unit = problems[start : start + UNIT]
        seeds = [derive_seed(seed, "lab", start + i) for i in range(len(unit))]
        prompts = encode_prompts(policy.tokenizer, [stage.prompt.render(p) for p in unit], seeds)
        keys = [_key(store, prompt, samples, own) for prompt, own in zip(prompts, seeds, strict=True)]
        kept = store.get(keys)
        if len(kept) < len(set(keys)):  # the whole unit: what a batch holds changes how its numbers are rounded
            drawn = stage.engine(policy.model, prompts, samples, bare, seeds)
            rows = [ids[mask].tolist() for ids, mask in zip(drawn.token_ids, drawn.response_mask, strict=True)]
            packed = [_packed(ids, cut) for ids, cut in zip(rows, drawn.truncated.tolist(), strict=True)]
            store.put({key: b"".join(packed[i * samples : (i + 1) * samples]) for i, key in enumerate(keys)})
            kept = store.get(keys)
        for number, (problem, prompt, key) in enumerate(zip(unit, prompts, keys, strict=True), start):
            completions = [
                (RecordedCompletion(f"{problem.id or f'problem {number + 1}'} #{k}", problem, "", truncated), prompt, ids)
                for k, (ids, truncated) in enumerate(_unpacked(kept[key]), 1)
            ]
            groups.append([EncodedCompletion(*parts) for parts in completions])
        advance(len(unit) * samples)
    return groups


def _key(store: Store, prompt: list[int], samples: int, seed: int) -> bytes:
    return store.key(b"completions", np.asarray([seed, samples, *prompt], dtype=np.int64).tobytes())


def _packed(ids: list[int], truncated: bool) -> bytes:
    return np.asarray([len(ids), truncated, *ids], dtype=np.int64).tobytes()


def _unpacked(value: bytes) -> list[tuple[list[int], bool]]:
    numbers, found, at = np.frombuffer(value, dtype=np.int64).tolist(), [], 0
    while at < len(numbers):
        length, truncated = numbers[at : at + 2]
        found.append((numbers[at + 2 : at + 2 + length], bool(truncated)))
        at += 2 + length
    return found


def read(
    recorded: Iterable[RecordedCompletion], policy: Policy, stage: RolloutStage, max_tokens: int | None, dropped: Counter[str]
) -> Groups:
    """Recorded completions in the policy's tokens; those that cannot be studied are counted in `dropped` by reason."""
    groups = [
        usable(encode_recorded(group, policy.tokenizer, stage.prompt), max_tokens, dropped, "lab")
        for group in group_by_problem(recorded)
    ]
    return [group for group in groups if group]


def study(policy: Policy, stage: RolloutStage, advantage: AdvantageConfig, groups: Groups, temperature: float = 1.0) -> Studied:
    """Judge the completions, which were drawn at a temperature, and let the policy read them."""
    encoded = [e for group in groups for e in group]
    model, device = policy.model, policy.model.get_input_embeddings().weight.device
    generation = to_generation(encoded, stage.pad_token_id, device)
    judging = dataclasses.replace(stage, rewards=gold_only(stage.rewards))
    rollouts = drawn_at(temperature, judging.judge(generation, [e.recorded.problem for e in encoded], 1, 0))
    found = advantages_by_problem(rollouts, [len(group) for group in groups], stage.rewards.weight_vector(), advantage)
    known = torch.tensor([0.0 if a is None else a for a in found], device=device)
    said = verdicts(rollouts, stage.rewards)
    numbers = predictions(model, rollouts, rollouts.response_mask, unset_budget("reading completions"))
    probabilities = numbers.logprobs.exp().masked_fill(~rollouts.response_mask, 0.0)
    return Studied(
        rollouts=dataclasses.replace(rollouts, advantages=known),
        problem=tuple(number for number, group in enumerate(groups) for _ in group),
        ids=tuple(e.recorded.id for e in encoded),
        correct=tuple(None if verdict is None else verdict == Verdict.CORRECT for verdict in said),
        probabilities=probabilities,
        entropy=numbers.entropy,
        free=rollouts.reasoning_mask & (probabilities < FREE_BELOW),
    )
