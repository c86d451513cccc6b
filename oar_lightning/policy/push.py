"""Puts an exported policy on the Hugging Face hub. The token is the environment's or that of `hf auth login`, and no text of
this file shows it."""

from __future__ import annotations

import glob
import re
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from oar_lightning.common.messages import one_line

T = TypeVar("T")


class PushError(ValueError):
    """The hub cannot be used; the message names key, value and remedy."""


@dataclass(frozen=True)
class HubRepo:
    """A repository of the hub for models, ``owner/name``. `private` is its state when it is created; one that exists keeps its
    own."""

    name: str
    private: bool = True

    def check(self) -> None:
        """Whether the name is one, there is a token, and the hub takes it. One short request.

        Raises:
            PushError: where not.
        """
        from huggingface_hub import constants
        from huggingface_hub.utils import HFValidationError, validate_repo_id

        try:
            validate_repo_id(self.name)
        except HFValidationError as error:
            raise self._error(str(error), "give <owner>/<name>") from None
        if "/" not in self.name:
            raise self._error("it has no owner", f"give <owner>/{self.name}")
        if constants.is_offline_mode():
            raise self._error("HF_HUB_OFFLINE keeps this process off the network", "unset it, or leave push_to_hub out")
        if self._call(_token) is None:
            raise self._error("there is no token", "set HF_TOKEN, or log in with `hf auth login`")
        self._call(lambda: _api().whoami())

    def create(self) -> None:
        """Make the repository, unless there is one.

        Raises:
            PushError: where the token may not.
        """
        self._call(lambda: _api().create_repo(self.name, private=self.private, exist_ok=True))

    def upload(self, folder: Path, files: Iterable[str]) -> str:
        """Upload these files of a folder in one commit; returns the repository's address.

        Raises:
            PushError: where it fails; the hub then shows nothing of it.
        """
        from huggingface_hub.utils import disable_progress_bars

        if not sys.stderr.isatty():
            disable_progress_bars()
        names = [glob.escape(name) for name in files]  # as patterns
        message = "Upload policy"
        self._call(
            lambda: _api().upload_folder(repo_id=self.name, folder_path=folder, allow_patterns=names, commit_message=message)
        )
        return f"{_api().endpoint}/{self.name}"

    def _call(self, request: Callable[[], T]) -> T:
        try:
            return request()
        except Exception as error:  # the library raises whatever its transport does
            # without its cause: of a token that is no valid header the transport's own message shows all
            raise self._error(*_explained(error)) from None

    def _error(self, what: str, remedy: str) -> PushError:
        return PushError(f"push_to_hub={self.name}: {what}; {remedy}")


def _api() -> Any:
    from huggingface_hub import HfApi

    return HfApi(library_name="oar_lightning")


def _token() -> str | None:
    from huggingface_hub import get_token

    return get_token()


def _explained(error: Exception) -> tuple[str, str]:
    """What went wrong in one line, and the remedy."""
    status = getattr(getattr(error, "response", None), "status_code", None)
    said = re.sub(r"Bearer [^'\"]*", "Bearer ***", one_line(error))
    if token := _token_or_none():
        said = said.replace(token, "***")
    said = f"{said:.300}"
    if isinstance(error, UnicodeError):
        return "the token holds characters that no token has", "set HF_TOKEN to a valid one"
    if status == 401:
        return f"the hub refuses the token ({said})", "set HF_TOKEN to a valid one, or log in with `hf auth login`"
    if status == 403:
        return f"the token may not write there ({said})", "use one with write access, or an owner that it may write to"
    if status is not None:
        return f"the hub refuses ({said})", "correct what it names"
    return f"{type(error).__name__}: {said}", "is the hub within reach (HF_ENDPOINT)? leave push_to_hub out to export only"


def _token_or_none() -> str | None:
    try:
        return _token()
    except Exception:  # asked for while another error is told
        return None
