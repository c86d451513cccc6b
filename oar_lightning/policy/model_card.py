"""The model card of an exported policy: facts about its run -> README.md. No text can break its Markdown or YAML."""

from __future__ import annotations

import logging
import re
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from oar_lightning.common.markdown import markdown
from oar_lightning.policy.location import CONFIG
from oar_lightning.policy.pretrained import BUILT_IN

log = logging.getLogger(__name__)

FILE = "README.md"

MARK = "<!-- Written by oar_lightning; the next export into this folder replaces it. Remove this line to keep it. -->"

UNKNOWN = "unknown: look it up"

TRAINING, EVALUATION = "training", "evaluation: "
"""Of the role of a set of problems: the whole of it, or what comes before an evaluation set's name."""

HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*", re.ASCII)


@dataclass(frozen=True)
class Base:
    """The policy that a run started from. `hub_id` is None for one that is not from the hub, `licence` where none is stated."""

    words: str
    hub_id: str | None = None
    licence: str | None = UNKNOWN


@dataclass(frozen=True)
class DataSource:
    """A set of problems: what it was used for (`TRAINING`, or `EVALUATION` and its name), what it is, how many of its problems
    were used, and its licence."""

    role: str
    words: str
    problems: str
    licence: str
    hub_id: str | None = None


@dataclass(frozen=True)
class Accuracy:
    """An accuracy on an evaluation set, in percent with its interval, before and after training, and its last value as a
    fraction."""

    eval_set: str
    metric: str
    before: str
    after: str
    value: float


@dataclass(frozen=True)
class CardFacts:
    """What a card says. None and empty: not known, which the card then says.

    `accuracies` were measured at the optimizer steps `measured` (first, last); the policy is that of step `step`. `former`: the
    runs that it went on from, the first one first, each with its last step and the keys of which the next has other values.
    """

    name: str
    step: int
    method: str
    base: Base | None
    settings: Sequence[tuple[str, str]] = ()
    data: Sequence[DataSource] = ()
    accuracies: Sequence[Accuracy] = ()
    measured: tuple[int, int] = (0, 0)
    former: Sequence[tuple[int, Sequence[str]]] = ()
    command: str | None = None
    revision: str | None = None
    seed: int | None = None


def write_card(folder: Path, facts: CardFacts) -> None:
    """Write the card into an exported policy's folder. A page there that is not one of ours stays, with a warning."""
    path = folder / FILE
    if path.exists() and MARK not in path.read_text(encoding="utf-8", errors="replace"):
        log.warning("%s is not overwritten by a model card, since it was not written by an export; remove it to get one", path)
        return
    path.write_text(model_card(facts), encoding="utf-8")


def model_card(facts: CardFacts) -> str:
    """The page with its YAML front matter."""
    base = facts.base
    parts = [
        f"---\n{front_matter(facts)}\n---\n{MARK}",
        f"# {inline(facts.name)}",
        f"The policy after optimizer step {facts.step} of {facts.method}, trained with oar_lightning. It started from "
        f"{inline(base.words) if base else 'a policy that is not known: the run’s config is not in its folder'}."
        + "".join(
            f" Until step {step} it was another run, with another {inline(', '.join(keys))}." for step, keys in facts.former
        ),
        "## Method",
        _table(["setting", "value"], facts.settings) if facts.settings else "Not known: the run’s config is not in its folder.",
        "## Data",
        _table(["used for", "source", "problems", "licence"], [(d.role, d.words, d.problems, d.licence) for d in facts.data])
        if facts.data
        else "Not known: the run’s config is not in its folder.",
        "## Accuracy",
        _accuracy(facts),
        "## How it was made",
        _fenced(facts.command) if facts.command else "The command is not known.",
        f"Code revision: {inline(facts.revision or 'not known')}. Seed: {'not known' if facts.seed is None else facts.seed}.",
        "## Licence",
        _licence(base),
    ]
    return "\n\n".join(parts) + "\n"


def _accuracy(facts: CardFacts) -> str:
    if not facts.accuracies:
        return "No evaluation of this policy is recorded."
    first, last = facts.measured
    trained = last > first  # else all that is known is of the policy before training
    header = ["evaluation set", "metric", f"before (step {first})", *([f"after (step {last})"] if trained else [])]
    rows = [[a.eval_set, a.metric, a.before, *([a.after] if trained else [])] for a in facts.accuracies]
    late = f" The policy itself, of step {facts.step}, was not evaluated." if last != facts.step else ""
    return (
        "In brackets: 95 % intervals (Wilson's, over the problems; the seed of training is one).\n\n"
        + _table(header, rows)
        + f"\n\n`avg_at_k`: mean of k sampled completions a problem; `pass_at_k`: at least one of them is correct; `maj_at_k`: "
        f"their most frequent answer is; `greedy`: decoded greedily.{late}"
    )


def _licence(base: Base | None) -> str:
    if base is None:
        return f"Of the policy that it started from: {UNKNOWN}."
    if base.licence is None:
        return "It started from random weights. See the licences of the data above."
    return (
        f"Of the policy that it started from ({inline(base.words)}): {inline(base.licence)}. See those of the data above too."
    )


def front_matter(facts: CardFacts) -> str:
    """The card's metadata in the form of the hub: what it knows only, and licences and sets only where the hub has them."""
    from huggingface_hub import EvalResult, ModelCardData

    hub_ids = {d.role: d.hub_id for d in facts.data}
    results = [
        EvalResult(
            task_type="text-generation",
            dataset_type=hub_ids.get(f"{EVALUATION}{a.eval_set}") or printable_line(a.eval_set),
            dataset_name=printable_line(a.eval_set),
            metric_type="accuracy",
            metric_name=printable_line(a.metric),
            metric_value=round(a.value, 4),
        )
        for a in facts.accuracies
        if facts.measured[1] == facts.step
    ]
    base = facts.base
    licence = base.licence or "" if base else ""
    data = ModelCardData(
        library_name="transformers",
        pipeline_tag="text-generation",
        license=licence if re.fullmatch(r"(?!other$)[a-z0-9.-]{1,60}", licence) else None,
        base_model=base.hub_id if base else None,
        datasets=sorted({d.hub_id for d in facts.data if d.hub_id and d.role == TRAINING}) or None,
        tags=["oar_lightning"],
        model_name=printable_line(facts.name) if results else None,
        eval_results=results or None,
    )
    return data.to_yaml()


def local_folder(name: str) -> Path | None:
    """The folder of that name on this machine; None where there is none."""
    try:
        folder = Path(name).expanduser()
        return folder if folder.is_dir() else None
    except (OSError, ValueError, RuntimeError):  # no name that a folder could have
        return None


def licence_of(folder: Path | None, hub_id: str | None, kind: str = "model", revision: str | None = None) -> str:
    """The licence that a model's or data set's own card states, in its folder or in the hub's cache; never asks the hub."""
    card = None if folder is None else folder / FILE
    if card is None and hub_id is not None:
        card = _cached(hub_id, FILE, revision, kind)
    stated = None if card is None else _stated_licence(card)
    if stated is None and hub_id is not None:
        return f"{UNKNOWN} (https://huggingface.co/{'' if kind == 'model' else 'datasets/'}{hub_id})"
    return stated or UNKNOWN


def _stated_licence(card: Path) -> str | None:
    from huggingface_hub import metadata_load
    from yaml import YAMLError

    try:
        metadata = metadata_load(card)
    except (OSError, ValueError, YAMLError):  # none, or no card
        return None
    found = metadata.get("license") if isinstance(metadata, dict) else None
    found = ", ".join(map(str, found)) if isinstance(found, list) else found
    name = metadata.get("license_name") if isinstance(metadata, dict) else None
    return f"other ({name})" if found == "other" and name else found if isinstance(found, str) and found else None


def base_of(policy: dict[str, Any]) -> Base:
    """The policy that a config's section `policy` names."""
    name = policy.get("name")
    if not isinstance(name, str):
        return Base("a random policy", licence=None)
    adapters = " with LoRA adapters, which are merged" if policy.get("lora") else ""
    if name in BUILT_IN:
        return Base(f"{name}, which comes with oar_lightning{adapters}", licence="apache-2.0")
    folder, revision = local_folder(name), policy.get("revision")
    if folder is not None or not _on_hub(name, revision):
        return Base(f"the local folder {Path(name).name}{adapters}", licence=licence_of(folder, None))
    words = f"{name}{f' (revision {revision})' if revision else ''}{adapters}"
    return Base(words, name, licence_of(None, name, revision=revision))


def _on_hub(name: str, revision: str | None) -> bool:
    """Whether a name that is no folder here is the hub's. One without an owner, as `gpt2`, may be that of a folder elsewhere:
    the hub's cache has what came from there."""
    return HUB_ID.fullmatch(name) is not None or _cached(name, CONFIG, revision) is not None


def _cached(hub_id: str, file: str, revision: str | None, kind: str = "model") -> Path | None:
    """A file in the hub's cache; None where it is not there, or the name is none that the hub has."""
    from huggingface_hub import try_to_load_from_cache
    from huggingface_hub.errors import HFValidationError

    try:
        path = try_to_load_from_cache(hub_id, file, revision=revision, repo_type=kind)
    except HFValidationError:
        return None
    return Path(path) if isinstance(path, str) else None


# -- text from outside ---------------------------------------------------------------------------------------------------

LONGEST = 400


def printable_line(text: str) -> str:
    """Text without control characters, line breaks and what cannot be encoded, and of bounded length."""
    clean = "".join("\ufffd" if unicodedata.category(c).startswith("C") and not c.isspace() else c for c in text[: 2 * LONGEST])
    clean = " ".join(clean.split())
    return clean if len(clean) <= LONGEST else f"{clean[: LONGEST - 1]}…"


def inline(text: str) -> str:
    """Text that means nothing to Markdown, HTML or a table."""
    return re.sub(r"([\\`*_{}\[\]<>|#!&~$])", r"\\\1", printable_line(text))


def _table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    return markdown([header, *([inline(cell) for cell in row] for row in rows)])


def _fenced(text: str) -> str:
    """A block of code that the text cannot end."""
    clean = "".join(c if c == "\n" or not unicodedata.category(c).startswith("C") else "\ufffd" for c in text)
    fence = "`" * max(3, 1 + max(map(len, re.findall(r"`+", clean)), default=0))
    return f"{fence}bash\n{clean}\n{fence}"
