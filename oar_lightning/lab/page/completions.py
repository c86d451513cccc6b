"""Which completions the page shows, in which order, and the numbers of their tokens."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from oar_lightning.common.ranks import mid_ranks
from oar_lightning.inspection.page import escape, json_number, lengths, reader
from oar_lightning.inspection.shades import make_scale
from oar_lightning.lab.page.record import LabRecord, nan

PAGE_TOKENS = 30_000
"""A page shows no more completions once they have so many tokens."""

OPEN_TOKENS = 300
"""The first completions are unfolded up to so many tokens, at least one is."""

NOTHING = "."
"""In place of a shade: a token without score."""


def chosen(record: LabRecord) -> list[int]:
    """The rows that the page shows, the most wrong first: those in which the contenders' mean of the first headline is worst.

    Completions in which it is not defined are last.
    """
    order = sorted(range(len(record.rows)), key=lambda i: (math.isnan(known := _mean_quality(record, i)), known))
    shown: list[int] = []
    tokens = 0
    for i in order:
        tokens += len(record.rows[i]["tokens"])
        if shown and tokens > PAGE_TOKENS:
            break
        shown.append(i)
    return shown


def _mean_quality(record: LabRecord, row: int) -> float:
    if not record.headlines:
        return math.nan
    measure = record.results["measures"][record.headlines[0]]
    known = [v for name in record.contenders if (v := _value(measure, name, row)) is not None]
    sign = 1 if measure["better"] == "high" else -1
    return sign * sum(known) / len(known) if known else math.nan


def _value(measure: Mapping[str, Any], name: str, row: int) -> float | None:
    """An estimator's quality in one completion."""
    return measure["values"][name][row] if name in measure["values"] else None


def sections(record: LabRecord, rows: Sequence[int]) -> str:
    """The completions' texts."""
    found: list[str] = []
    tokens = 0
    for row in rows:
        tokens += len(record.rows[row]["tokens"])
        found.append(_section(row + 1, record.rows[row], not found or tokens <= OPEN_TOKENS))
    return "\n".join(found)


def _section(number: int, row: Mapping[str, Any], unfolded: bool) -> str:
    kind, verdict = {None: ("", "no gold answer"), True: ("ok", "correct"), False: ("bad", "incorrect")}[row["correct"]]
    answer = "none found" if row["answer"] is None else str(row["answer"])
    gold = "" if row["gold"] is None else f" &middot; gold {escape(str(row['gold']))}"
    text = reader(number, row["tokens"], unfolded) if row["tokens"] else '<div class="meta">no tokens</div>'
    return f"""<section class="{f"completion {kind}".strip()}"><h3>{escape(row["id"])} &middot;
<span class="verdict">{verdict}</span> &middot; answer {escape(answer)}{gold}</h3>
<p class="problem">{escape(row["question"])}</p>
<div class="lines"><div class="names" aria-hidden="true"></div>
{text}</div></section>"""


def data(record: LabRecord, rows: Sequence[int]) -> str:
    """The JSON of the page: what the strips are, and their numbers completion by completion."""
    measures = {key: record.results["measures"][key] for key in record.headlines}
    head = {
        "truths": [
            {"name": name, "valued": any("value" in r["truths"][name] for r in record.rows)} for name in _truths(record)
        ],
        "estimators": [{"name": name, "control": record.is_control(name)} for name in record.ranking],
        "contenders": record.contenders,
        "measures": [
            {"key": key, "title": f"{key.partition('.')[0]}: {m['title']}", "low": m["better"] == "low"}
            for key, m in measures.items()
        ],
    }
    bodies = ",".join(_completion(record, row, measures) for row in rows)
    return f'{json.dumps(head)[:-1]},"completions":[{bodies}]}}'


def _truths(record: LabRecord) -> list[str]:
    """Those that know sizes first."""
    return sorted(record.results["truths"], key=lambda name: not any("value" in row["truths"][name] for row in record.rows))


def _completion(record: LabRecord, number: int, measures: Mapping[str, Any]) -> str:
    row = record.rows[number]
    among = [bool(mark) for mark in row["reasoning"]]
    if not any(among):
        among = [True] * len(among)
    parts = {
        "lengths": json.dumps(lengths(row["tokens"])),
        "reasoning": json.dumps(_marks(row["reasoning"])),
        "free": json.dumps(_marks(row["free"])),
        "p": _numbers(row["probability"]),
        "entropy": _numbers(row["entropy"]),
        "truths": _list(_truth(row["truths"][name]) for name in _truths(record)),
        "said": _list(_said(row["estimators"][name], among) for name in record.ranking),
        "quality": json.dumps(
            [[m["values"].get(name, {number: None})[number] for name in record.ranking] for m in measures.values()]
        ),
    }
    return _object(parts)


def _truth(own: Mapping[str, Any]) -> str:
    parts = {"known": json.dumps(_marks(own["known"])), "decisive": json.dumps(_marks(own["decisive"]))}
    if "value" in own:
        values, known = [nan(v) for v in own["value"]], [bool(mark) for mark in own["known"]]
        parts |= {"value": _numbers(own["value"]), "shades": json.dumps(_shades(values, known))}
    return _object(parts)


def _said(own: Mapping[str, Any], among: Sequence[bool]) -> str:
    """Scores and advantages with their shades, and each token's place in the order of the scores' sizes (0: none)."""
    score, advantage = ([nan(v) for v in own[key]] for key in ("score", "advantage"))
    scored = [inside or value != 0 for inside, value in zip(among, score, strict=True)]
    return _object(
        {
            "score": _numbers(own["score"]),
            "advantage": _numbers(own["advantage"]),
            "score_shades": json.dumps(_shades(score, scored)),
            "advantage_shades": json.dumps(_shades(advantage, [True] * len(advantage))),
            "place": json.dumps(_places(score, scored)),
        }
    )


def _shades(values: Sequence[float], among: Sequence[bool]) -> str:
    scale = make_scale([value for value, inside in zip(values, among, strict=True) if inside])
    return "".join(scale.shade(value) if inside else NOTHING for value, inside in zip(values, among, strict=True))


def _places(scores: Sequence[float], among: Sequence[bool]) -> list[float]:
    """1 for the largest size; equal sizes share the mean of theirs."""
    ranked = np.array([inside and not math.isnan(s) for s, inside in zip(scores, among, strict=True)], dtype=bool)
    places = np.zeros(len(scores))
    if ranked.any():
        places[ranked] = mid_ranks(-np.abs(np.array(scores)[ranked])).numpy()
    return [int(p) if p == int(p) else float(p) for p in places]


def _marks(marks: Sequence[int]) -> str:
    return "".join("1" if mark else "0" for mark in marks)


def _numbers(values: Sequence[float | None]) -> str:
    return f"[{','.join(json_number(nan(v)) for v in values)}]"


def _list(parts: Any) -> str:
    return f"[{','.join(parts)}]"


def _object(parts: Mapping[str, str]) -> str:
    return f"{{{','.join(f'{json.dumps(key)}:{value}' for key, value in parts.items())}}}"
