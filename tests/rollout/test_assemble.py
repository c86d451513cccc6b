"""From sampled ids to judged rollouts: masks, answers and rewards of hand-built generations."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from support.fixtures import tiny_policy

from oar_lightning.answers.reward import Accuracy, Completion, Format, Rewards
from oar_lightning.answers.span import AnswerFormat
from oar_lightning.data.prompts import PlainPrompt
from oar_lightning.policy.token_text import TokenBytes
from oar_lightning.rollout import CachedEngine, Generation, RolloutStage, SamplingConfig
from oar_lightning.rollout.assemble import drawn_at
from oar_lightning.types import MathProblem, Rollouts

POLICY = tiny_policy()
TOKENIZER = POLICY.tokenizer
EOS, PAD = TOKENIZER.eos_token_id, TOKENIZER.pad_token_id


class Recorder:
    """A reward that keeps what it was asked."""

    def __init__(self) -> None:
        self.seen: list[Completion] = []

    def __call__(self, problems: Sequence[MathProblem], completions: Sequence[Completion]) -> list[float | None]:
        self.seen = list(completions)
        return [None if c.answer is None else 1.0 for c in completions]


def stage(answer_format: AnswerFormat = AnswerFormat(), recorder: Recorder | None = None) -> RolloutStage:
    terms = {"accuracy": Accuracy(), "format": Format(), "seen": recorder or Recorder()}
    rewards = Rewards(terms, {"format": 0.5, "seen": 0.25})
    return RolloutStage(CachedEngine(TOKENIZER), TokenBytes(TOKENIZER), PlainPrompt(), answer_format, rewards, PAD)


def ids_of(pieces: list[str]) -> list[int]:
    """The ids of texts of one token each, or of more (all are kept)."""
    return [i for piece in pieces for i in TOKENIZER(piece, add_special_tokens=False).input_ids]


def generation(rows: list[tuple[list[int], list[int], bool]]) -> Generation:
    """Rows of (prompt, completion without EOS, truncated), padded on both sides."""
    left = max(len(p) for p, _, _ in rows) + 1
    right = max(len(c) for _, c, _ in rows) + 2
    ids, attention, response = [], [], []
    for prompt, completion, truncated in rows:
        completion = completion if truncated else [*completion, EOS]
        before, after = left - len(prompt), right - len(completion)
        ids.append([PAD] * before + prompt + completion + [PAD] * after)
        attention.append([False] * before + [True] * (len(prompt) + len(completion)) + [False] * after)
        response.append([False] * left + [True] * len(completion) + [False] * after)
    truncated_rows = torch.tensor([t for _, _, t in rows])
    return Generation(torch.tensor(ids), torch.tensor(attention), torch.tensor(response), truncated_rows)


def marked(rollouts: Rollouts, mask: torch.Tensor, row: int) -> str:
    return TOKENIZER.decode(rollouts.token_ids[row][mask[row]])


# completion, truncated, reasoning, answer tokens, answer text
ROWS = [
    ("7+4=11 so \\boxed{11}. ok", False, "7+4=11 so ", "11", "11"),
    ("\\boxed{4} no \\boxed{5}", False, "\\boxed{4} no ", "5", "5"),
    ("it is 5", False, "", "", None),
    ("5. #### 1", True, "", "", None),
    ("5. #### 11\n", True, "5. ", "11", "11"),
]


def test_rollouts_know_the_temperature_that_they_were_drawn_at() -> None:
    rollouts = stage().judge(generation([(ids_of(["Ann"]), ids_of(["5"]), False)]), [MathProblem("q", "5")], 1, 0)
    assert [drawn_at(t, rollouts).temperature for t in (1.5, 1.0, 0.0)] == [1.5, 1.0, 1.0]
    assert drawn_at(1.5, rollouts).select(torch.tensor([0])).temperature == 1.5


def test_masks_answers_and_rewards() -> None:
    prompt = ids_of(["Ann"])
    rows = [(prompt * (1 + i % 2), ids_of([text]), truncated) for i, (text, truncated, *_) in enumerate(ROWS)]
    problems = [MathProblem("q", gold) for gold in ("11", "4", "5", "1", "11")]
    recorder = Recorder()
    given = generation(rows)
    rollouts = stage(recorder=recorder).judge(given, problems, group_size=1, step=3)
    for row, (text, truncated, reasoning, answer, found) in enumerate(ROWS):
        # a reasoning token that runs into the conclusion belongs to the conclusion
        assert reasoning.startswith(marked(rollouts, rollouts.reasoning_mask, row))
        assert bool(reasoning) == bool(rollouts.reasoning_mask[row].any())
        assert answer in marked(rollouts, rollouts.answer_mask, row)
        assert bool(answer) == bool(rollouts.answer_mask[row].any())
        assert rollouts.answers[row] == found
        assert rollouts.completions[row] == text
        assert recorder.seen[row] == Completion(text, found, truncated, len(rows[row][1]) + (not truncated))
    assert not (rollouts.reasoning_mask & rollouts.answer_mask).any()
    assert not ((rollouts.reasoning_mask | rollouts.answer_mask) & ~rollouts.response_mask).any()
    assert not (rollouts.reasoning_mask & (rollouts.token_ids == EOS)).any()
    terms = rollouts.reward_terms
    assert terms[:, 0].tolist() == [1, 0, 0, 0, 1]
    assert terms[:, 1].tolist() == [1, 1, 0, 0, 0]
    assert terms[:, 2].isnan().tolist() == [False, False, True, True, False]
    torch.testing.assert_close(rollouts.rewards, torch.tensor([1.75, 0.75, 0.0, 0.0, 1.25], dtype=torch.float64))
    for name in ("token_ids", "attention_mask", "response_mask", "truncated"):
        assert torch.equal(getattr(rollouts, name), getattr(given, name))
    assert (rollouts.step, rollouts.group_size, rollouts.pad_token_id) == (3, 1, PAD)
    assert rollouts.stats["rewards/accuracy"] == pytest.approx(0.4)
    assert rollouts.stats["verdict/correct"] == pytest.approx(0.4)


def test_each_digit_of_the_answer_is_marked_where_it_stands() -> None:
    """Column by column, against the ids themselves."""
    pieces = ids_of(["1", "+", "1", "=", "2", "\n"]), ids_of(["\\boxed{"]), ids_of(["1", "2"]), ids_of(["}"])
    reasoning, conclusion, answer, tail = map(len, pieces)
    given = generation([(ids_of(["So"]), [i for piece in pieces for i in piece], False)])
    rollouts = stage().judge(given, [MathProblem("q", "12")], 1, 0)
    start = int(given.response_mask[0].nonzero()[0])
    width = given.token_ids.shape[1]
    expected = torch.zeros(2, width, dtype=torch.bool)
    expected[0, start : start + reasoning] = True
    expected[1, start + reasoning + conclusion : start + reasoning + conclusion + answer] = True
    assert torch.equal(rollouts.reasoning_mask[0], expected[0])
    assert torch.equal(rollouts.answer_mask[0], expected[1])
    assert int(given.response_mask.sum()) == reasoning + conclusion + answer + tail + 1


@pytest.mark.parametrize(("completion", "truncated"), [("it is 5", False), ("it is 5", True)])
def test_last_token_probes_a_completion_without_an_answer(completion: str, truncated: bool) -> None:
    given = generation([(ids_of(["So"]), ids_of([completion]), truncated)])
    rollouts = stage(AnswerFormat(no_span="last_token")).judge(given, [MathProblem("q", "5")], 1, 0)
    columns = given.response_mask[0].nonzero().flatten().tolist()
    assert rollouts.reasoning_mask[0].nonzero().flatten().tolist() == columns[:-1]
    assert rollouts.answer_mask[0].nonzero().flatten().tolist() == columns[-1:]
    assert rollouts.answers == (None,), "it is credited, not counted as an answer"
    assert rollouts.reward_terms[0, 0] == 0


def test_a_single_token_has_nothing_to_credit() -> None:
    given = generation([(ids_of(["So"]), [], False)])
    rollouts = stage(AnswerFormat(no_span="last_token")).judge(given, [MathProblem("q", "5")], 1, 0)
    assert not rollouts.reasoning_mask.any()
    assert not rollouts.answer_mask.any()
    assert rollouts.completions == ("",)


def test_bytes_that_are_no_utf8_do_not_break_a_step() -> None:
    half = TOKENIZER("😀", add_special_tokens=False).input_ids[:2]
    given = generation([(ids_of(["So"]), [*half, *ids_of(["\\boxed{"]), *half, *ids_of(["}"])], False)])
    rollouts = stage().judge(given, [MathProblem("q", "5")], 1, 0)
    assert int(rollouts.answer_mask.sum()) == len(half)
    rollouts.completions[0].encode()
    assert rollouts.answers[0] == "\ufffd" * len(half)
    assert rollouts.token_spans[0][-1][1] == len(rollouts.completions[0])
    assert rollouts.reward_terms[0, 0] == 0


def test_a_whole_stage() -> None:
    problems = [MathProblem(f"Ann has {i} pens.", str(i)) for i in (3, 14)]
    rollouts = stage()(POLICY.model, problems, 3, SamplingConfig(max_new_tokens=6), [1, 2], step=2)
    assert len(rollouts) == 6
    assert rollouts.problems == tuple(p for p in problems for _ in range(3))
    assert {"time/generate_s", "time/reward_s"} <= set(rollouts.stats)
    prompts = rollouts.attention_mask & ~rollouts.response_mask
    for row, problem in enumerate(rollouts.problems):
        assert marked(rollouts, prompts, row) == problem.question + "\n"
        text = TOKENIZER.decode(rollouts.token_ids[row][rollouts.response_mask[row]], skip_special_tokens=True)
        assert rollouts.completions[row] == text
