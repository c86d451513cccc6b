"""The warm start: what it learns from, which demonstrations it leaves out, and what its messages name."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import lightning as L
import pytest
import torch
from support.fixtures import fit, make_warm_start, tiny_policy

from oar_lightning.common.config_check import ConfigError
from oar_lightning.data.prompts import PlainPrompt
from oar_lightning.policy.out_of_memory import advice
from oar_lightning.training.supervised import pad_right


class FirstStep(L.Callback):
    """Keeps the problems of the first step and the gradients that it leaves."""

    def on_train_batch_start(self, trainer: L.Trainer, pl_module: L.LightningModule, batch: Any, batch_idx: int) -> None:
        self.problems = batch

    def on_after_backward(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self.gradients = {name: p.grad.clone() for name, p in pl_module.model.named_parameters() if p.grad is not None}


def test_a_step_learns_the_solutions_and_their_end_a_token_as_much_as_another() -> None:
    """Against each demonstration alone, without padding: the prompt is read and not learnt."""
    policy, plain = tiny_policy(), tiny_policy().model
    step = FirstStep()
    logged = fit(make_warm_start(policy, batch_size=3), 1, [step], clip=None).rows[1]["loss"]
    total, tokens = torch.zeros(()), 0
    for problem in step.problems:
        prompt, solution = (
            policy.tokenizer(text, add_special_tokens=False).input_ids
            for text in (PlainPrompt().render(problem), problem.solution)
        )
        ids = torch.tensor([*prompt, *solution, policy.tokenizer.eos_token_id])
        logprobs = plain(ids[None]).logits[0, :-1].log_softmax(-1).gather(1, ids[1:, None])[:, 0]
        total = total - logprobs[len(prompt) - 1 :].sum()
        tokens += len(solution) + 1
    assert len({len(p.solution) for p in step.problems}) > 1, "of unequal lengths"
    loss = total / tokens
    loss.backward()
    torch.testing.assert_close(torch.tensor(logged), loss.detach(), rtol=1e-5, atol=1e-6)
    expected = {name: p.grad for name, p in plain.named_parameters() if p.grad is not None}
    assert expected.keys() == step.gradients.keys()
    for name, gradient in expected.items():
        torch.testing.assert_close(step.gradients[name], gradient, rtol=1e-3, atol=1e-6)


def test_rows_are_padded_on_the_right() -> None:
    ids, attention, solution = pad_right([([5, 6], [7, 8]), ([5], [7])], 9, torch.device("cpu"))
    assert ids.tolist() == [[5, 6, 7, 8], [5, 7, 9, 9]]
    assert attention.long().tolist() == [[1, 1, 1, 1], [1, 1, 0, 0]]
    assert solution.long().tolist() == [[0, 0, 1, 1], [0, 1, 0, 0]]


def test_demonstrations_of_more_tokens_than_positions_are_left_out_and_counted() -> None:
    policy = tiny_policy()
    policy.model.config.max_position_embeddings = 53
    (short, limited, all_kept) = (
        fit(module, 1).rows[1]["too_long_frac"]
        for module in (make_warm_start(policy), make_warm_start(tiny_policy(), max_tokens=53), make_warm_start(tiny_policy()))
    )
    assert short == limited > all_kept == 0


def test_a_run_in_which_no_demonstration_fits_ends_with_the_key(caplog: pytest.LogCaptureFixture) -> None:
    with (
        caplog.at_level(logging.WARNING, logger="oar_lightning"),
        pytest.raises(
            ConfigError,
            match=r"supervised\.max_tokens=1: no demonstration of the first 2 steps fits.* has \d\d ",
        ),
    ):
        fit(make_warm_start(tiny_policy(), max_tokens=1), 2)
    assert caplog.text.count("are longer and left out") == 1
    with pytest.raises(ConfigError, match=r"no demonstration of the first 10 steps fits"):
        fit(make_warm_start(tiny_policy(), max_tokens=1), 12)
    policy = tiny_policy()
    policy.model.config.max_position_embeddings = 3
    with pytest.raises(ConfigError, match=r"^supervised\.max_tokens=\d+, and the policy reads 3 tokens: no demonstration"):
        fit(make_warm_start(policy), 1)


def test_a_run_that_goes_on_has_begun_to_learn(tmp_path: Path) -> None:
    saving = L.pytorch.callbacks.ModelCheckpoint(tmp_path, save_last=True, every_n_train_steps=1)
    fit(make_warm_start(tiny_policy()), 1, [saving])
    on = fit(make_warm_start(tiny_policy(), max_tokens=1), 3, ckpt_path=str(tmp_path / "last.ckpt"))
    assert on.rows[3]["too_long_frac"] == 1


def test_what_did_not_fit_is_told_with_the_keys_of_the_warm_start() -> None:
    said = advice(torch.OutOfMemoryError("full"), make_warm_start(tiny_policy()).memory_bounds)
    assert "supervised.batch_size" in said
    assert "supervised.max_tokens" in said
    assert "update." not in said
