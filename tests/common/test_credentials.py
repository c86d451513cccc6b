"""What is shown of a command holds no credentials."""

from __future__ import annotations

from oar_lightning.common.credentials import shown_words, without_credentials


def test_an_override_without_credentials() -> None:
    assert without_credentials("logger.tracking_uri=http://me:word@127.0.0.1") == "logger.tracking_uri=http://127.0.0.1"
    assert without_credentials("scorer.judge.api_key=word") == "scorer.judge.api_key=***"
    assert without_credentials("policy.name=~/mine") == "policy.name=~/mine"
    assert without_credentials("++token=word") == "++token=***"
    assert without_credentials("+scorer.judge={api_key: word, model: m}") == "+scorer.judge={api_key: ***, model: m}"
    assert (
        without_credentials("scorer.judge.url=https://h/v1?api_key=word&x=1") == "scorer.judge.url=https://h/v1?api_key=***&x=1"
    )
    for plain in ("rollout.max_new_tokens=80", "scorer.token_budget=512", "data.chat={max_tokens: 3}"):
        assert without_credentials(plain) == plain


def test_a_command_is_one_line_for_a_shell() -> None:
    words = [
        "+sweeps=methods",
        "+policy.token=hf_abcdefghij",
        "logger.tracking_uri=http://me:word@host:5000",
        "seed=choice(0,1)",
    ]
    shown = "+sweeps=methods '+policy.token=***' logger.tracking_uri=http://host:5000 'seed=choice(0,1)'"
    assert shown_words(words) == shown
