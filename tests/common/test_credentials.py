"""What is shown of a command holds no credentials."""

from __future__ import annotations

from oar_lightning.common.credentials import hidden, in_words, shown_words, without_credentials


def test_an_override_without_credentials() -> None:
    assert without_credentials("logger.tracking_uri=http://me:word@127.0.0.1") == "logger.tracking_uri=http://127.0.0.1"
    assert without_credentials("scorer.judge.api_key=word") == "scorer.judge.api_key=***"
    assert without_credentials("policy.name=~/mine") == "policy.name=~/mine"
    assert without_credentials("++token=word") == "++token=***"
    assert without_credentials("+judge.credentials.key=word") == "+judge.credentials.key=***"
    assert without_credentials("+scorer.judge={api_key: word, model: m}") == "+scorer.judge={api_key: ***, model: m}"
    assert (
        without_credentials("scorer.judge.url=https://h/v1?api_key=word&x=1") == "scorer.judge.url=https://h/v1?api_key=***&x=1"
    )
    for plain in ("rollout.max_new_tokens=80", "scorer.token_budget=512", "data.chat={max_tokens: 3}", "+a.per_token=2"):
        assert without_credentials(plain) == plain


def test_a_config_without_credentials() -> None:
    config = {
        "judge": {"api_key": "word", "password": 1234, "token": None, "url": "https://me:word@h/v1?api_key=word&x=1"},
        "headers": [{"access_token": "word", "Authorization": "Bearer word"}, "Bearer hf_abcdefghij", "--api-key=word"],
        "credentials": {"user": "me", "key": "word"},
        "policy": {"pad_token": "<pad>", "max_tokens": 3, "penalty_per_token": 0.1, "name": "a/b", "mask_token": "m"},
        "prompt": "The secret: {question}",
    }
    assert hidden(config) == {
        "judge": {"api_key": "***", "password": "***", "token": None, "url": "https://h/v1?api_key=***&x=1"},
        "headers": [{"access_token": "***", "Authorization": "***"}, "Bearer ***", "--api-key=***"],
        "credentials": "***",
        "policy": config["policy"],
        "prompt": config["prompt"],
    }
    assert hidden("word", "reward.terms.judge.api_key") == hidden("word", "judge.credentials.key") == "***"


def test_a_message_without_credentials() -> None:
    message = "judge.api_key=word, at http://me:word@host/v1?token=word, unexpected token: ')'"
    assert in_words(message) == "judge.api_key=***, at http://host/v1?token=***, unexpected token: ')'"


def test_a_command_is_one_line_for_a_shell() -> None:
    words = [
        "+sweeps=methods",
        "+policy.token=hf_abcdefghij",
        "logger.tracking_uri=http://me:word@host:5000",
        "seed=choice(0,1)",
    ]
    shown = "+sweeps=methods '+policy.token=***' logger.tracking_uri=http://host:5000 'seed=choice(0,1)'"
    assert shown_words(words) == shown
