"""The page's tables: the ranking, and all measures of each truth and kind."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any

from oar_lightning.inspection.page import escape
from oar_lightning.lab.page.record import LabRecord, nan


def ranking_table(record: LabRecord) -> str:
    """Headline measures with intervals, differences to the baseline that chance does not explain, and costs."""
    return _table(record, record.headlines, costs=True)


def all_measures(record: LabRecord) -> str:
    """A folded table for each kind of measure: those of a truth, of removal, ..."""
    kinds: dict[str, list[str]] = {}
    for key in record.results["measures"]:
        kinds.setdefault(key.partition(".")[0], []).append(key)
    return "".join(
        f"<details><summary>all of {escape(kind)}</summary>{_table(record, keys, costs=False)}</details>"
        for kind, keys in kinds.items()
    )


def truths_table(record: LabRecord) -> str:
    """What each truth knows, and how reliable it is."""
    rows = []
    for name, truth in record.results["truths"].items():
        own = truth["reliability"]
        known = [f"{nan(own[key]):.2f}" for key in ("size", "direction", "half_auroc")] if own else ["exact", "", ""]
        share = f"{100 * truth['decisive'] / max(1, truth['tokens']):.1f} %"
        rows.append([name, str(truth["completions"]), f"{truth['tokens']:,}", share, *known])
    header = ["truth", "completions", "tokens", "decisive", "reliability of sizes", "of directions", "AUROC half against half"]
    return _plain(header, rows)


def gradients_table(record: LabRecord) -> str:
    """The quality of each estimator's policy gradient; empty where it was not measured."""
    gradients: Mapping[str, Mapping[str, Any]] = record.results.get("gradients") or {}
    keys = list(dict.fromkeys(key for own in gradients.values() for key in own))
    if not keys:
        return ""
    names = [n for n in record.ranking if n in gradients] + [n for n in gradients if n not in record.ranking]
    rows = [[name, *(_interval(gradients[name].get(key)) for key in keys)] for name in names]
    return _plain(["estimator", *(key.replace("_", " ") for key in keys)], rows)


def _plain(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    head = "".join(f'<th scope="col">{escape(cell)}</th>' for cell in header)
    body = "".join(
        f'<tr><th scope="row">{escape(row[0])}</th>{"".join(f"<td>{escape(cell)}</td>" for cell in row[1:])}</tr>'
        for row in rows
    )
    return f'<div class="wide"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'


def _table(record: LabRecord, keys: Sequence[str], costs: bool) -> str:
    measures = {key: record.results["measures"][key] for key in keys}
    groups = [(kind, len(list(own))) for kind, own in itertools.groupby(key.partition(".")[0] for key in keys)]
    above = "".join(f'<th colspan="{count}" scope="colgroup">{escape(kind)}</th>' for kind, count in groups)
    above += '<th colspan="2" scope="colgroup">cost</th>' * costs
    names = [m["title"] + (" (low is better)" if m["better"] == "low" else "") for m in measures.values()]
    head = "".join(f'<th scope="col">{escape(name)}</th>' for name in [*names, *["seconds", "forward-equivalents"] * costs])
    best = {key: _best(record, measure) for key, measure in measures.items()}
    body = []
    for name in record.ranking:
        kind = ' class="control"' if record.is_control(name) else ""
        badge = " <small>control</small>" * bool(kind) + " <small>baseline</small>" * (name == record.results["baseline"])
        cells = "".join(_cell(record, key, name, name in best[key]) for key in keys)
        cells += _costs(record.results["estimators"][name]) * costs
        body.append(f'<tr{kind}><th scope="row">{escape(name)}{badge}</th>{cells}</tr>')
    chance = "".join(f"<td>{_number(m['chance'])}</td>" for m in measures.values()) + "<td></td><td></td>" * costs
    body.append(f'<tr class="last"><th scope="row">(chance)</th>{chance}</tr>')
    return (
        f'<div class="wide"><table><thead><tr><td></td>{above}</tr><tr><th scope="col">estimator</th>{head}</tr></thead>'
        f"<tbody>{''.join(body)}</tbody></table></div>"
    )


def _best(record: LabRecord, measure: Mapping[str, Any]) -> set[str]:
    """The contenders with the best mean."""
    sign = 1 if measure["better"] == "high" else -1
    means = {name: sign * nan(measure["means"][name]["mean"]) for name in record.contenders if name in measure["means"]}
    top = max((v for v in means.values() if not math.isnan(v)), default=math.nan)
    return {name for name, value in means.items() if value == top}


def _cell(record: LabRecord, key: str, name: str, best: bool) -> str:
    measure = record.results["measures"][key]
    mean = measure["means"].get(name)
    if mean is None or mean["mean"] is None:
        return "<td>-</td>"
    value = f"<b>{_number(mean['mean'])}</b>" if best else _number(mean["mean"])
    if (ceiling := measure["ceiling"].get(name)) is not None:
        value += f' <small title="what an estimator as noisy as this one could reach">/ {ceiling:.2f}</small>'
    if mean["n"] < max(other["n"] for other in measure["means"].values()):
        value += f' <small title="others have more completions: those left out may be the hard ones">(n = {mean["n"]})</small>'
    bounds = "" if mean["low"] is None else f"<small>{_number(mean['low'])} to {_number(mean['high'])}</small>"
    return f"<td>{value}{_star(record, key, name)}<br>{bounds}</td>"


def _star(record: LabRecord, key: str, name: str) -> str:
    for d in record.results.get("differences", ()):
        if (d["measure"], d["estimator"]) == (key, name) and d["p_holm"] is not None and d["p_holm"] < 0.05:
            baseline = escape(record.results["baseline"])
            return f'<span title="difference to {baseline}: {d["mean"]:+.2f}, p {d["p_holm"]:.2g}">*</span>'
    return ""


def _costs(own: Mapping[str, Any]) -> str:
    return f"<td>{_number(own['seconds'])}</td><td>{_number(own['forward_equivalents'], 1)}</td>"


def _number(value: float | None, digits: int = 2) -> str:
    return "" if value is None else f"{value:z,.{digits}f}"


def _interval(found: Mapping[str, Any] | None) -> str:
    if found is None or found["mean"] is None:
        return "-"
    bounds = "" if found["low"] is None else f" [{found['low']:.3g}, {found['high']:.3g}]"
    return f"{found['mean']:.3g}{bounds}"
