"""Where a pretrained policy is: a folder or a hub repository, checked before `transformers` looks for a minute."""

from __future__ import annotations

import re
from pathlib import Path

from oar_lightning.common.messages import one_line

CONFIG, ADAPTER_CONFIG = "config.json", "adapter_config.json"

TOKENIZERS = ("tokenizer*", "vocab*", "*.model", "*.tiktoken")
"""Patterns of the files of which a tokenizer has one at least."""


def check_location(name: str, revision: str | None = None, tokenizer: bool = True, key: str = "policy") -> None:
    """Check that there is a model, and a tokenizer where asked for, or a hub repository that is cached or can be reached.
    `key`: of the config, for messages.

    Raises:
        ValueError: says what is missing, and what to give.
    """
    path = Path(name).expanduser()
    if path.is_dir():
        if revision is not None:
            raise ValueError(
                f"{key}.revision={revision}: {key}.name={name} is a folder, and revisions are the hub's; leave the revision out"
            )
        _check_folder(path, name, tokenizer, key)
    elif path.exists():
        raise ValueError(f"{key}.name={name} is a file; give the folder of a model in Hugging Face format")
    elif not re.fullmatch(r"[\w.-]+(/[\w.-]+)?", name) or name.startswith("."):
        raise ValueError(
            f"{key}.name={name}: no such folder, and no hub id; correct the path, or give a hub id or one of the policies "
            "of the package, e.g. chain"
        )
    else:
        _check_hub(name, revision, key)


def adapters_alone(setting: str) -> str:
    """The refusal of LoRA adapters without the model that they belong to."""
    return (
        f"{setting} holds LoRA adapters alone; give the folder with the merged policy, which an export of this package writes "
        "above them, or merge them: peft.AutoPeftModelForCausalLM.from_pretrained(...).merge_and_unload().save_pretrained(...)"
    )


def _check_folder(folder: Path, name: str, tokenizer: bool, key: str) -> None:
    if not (folder / CONFIG).is_file():
        if (folder / ADAPTER_CONFIG).is_file():
            raise ValueError(adapters_alone(f"{key}.name={name}"))
        inside = folder / "policy"
        hint = f"{key}.name={inside}" if inside.is_dir() else "a folder in Hugging Face format, e.g. <run folder>/policy"
        raise ValueError(f"{key}.name={name} holds no {CONFIG}; give {hint}")
    if tokenizer and not any(any(folder.glob(pattern)) for pattern in TOKENIZERS):
        raise ValueError(
            f"{key}.name={name} holds no tokenizer; save that of the model there: "
            f"AutoTokenizer.from_pretrained(...).save_pretrained({name!r})"
        )


def _check_hub(name: str, revision: str | None, key: str) -> None:
    from huggingface_hub import HfApi, try_to_load_from_cache

    if isinstance(try_to_load_from_cache(name, CONFIG, revision=revision), str):
        return
    try:
        HfApi().model_info(name, revision=revision, timeout=10)
    except Exception as error:  # of the library's transport, whichever that is
        raise ValueError(
            f"{key}.name={name} is no folder here, is not in the hub's cache and cannot be found on the hub "
            f"({one_line(error):.200}); correct the name, or give the folder of a model that was downloaded elsewhere"
        ) from error
