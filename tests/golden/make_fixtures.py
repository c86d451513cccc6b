"""Reduce the full set of golden vectors to the fixtures that the tests carry.

    python tests/golden/make_fixtures.py FOLDER_WITH_THE_FULL_SET

Numbers keep 15 significant digits, which is 1e-15 relative and below every tolerance used. Padding positions of gradients are
dropped (they are 0 in the full set, which is checked here). What each field means is written in README.md beside this file.
"""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
LOSS_TYPES = ("grpo", "bnpo", "dr_grpo", "dapo", "cispo")
LOSS_GROUPS = ("grid", "on_policy", "entropy_bonus")
METRICS = ("kl", "clip_ratio/low_mean", "clip_ratio/high_mean", "clip_ratio/region_mean", "cispo_clip_ratio")
PROBES = {("last", "noans"): "last", ("answer_mean", "full"): "answer_mean", ("answer_joint_mean", "full"): "answer_joint"}


def main(source: Path) -> None:
    def load(name: str) -> Any:
        return json.loads((source / f"{name}.json").read_text())

    def save(name: str, content: Any) -> None:
        text = json.dumps(shortened(content), separators=(",", ":"))
        (HERE / f"{name}.json").write_text(text + "\n")

    save("gating", gating(load("gating")))
    save("oar_p", scores(load("oar_p"), ["score_f64"]))
    save("oar_g", scores(load("oar_g"), ["noise_std", "J_f64", "dot_f64"]))
    save("grpo_losses", losses(load("grpo_losses")))
    save("group_advantages", advantages(load("group_advantages")))
    save("oar_loss", oar_loss(load("oar_loss")))
    save("trl_end_to_end", end_to_end(load("trl_end_to_end")))
    model = load("model")
    save("model", {key: model[key] for key in ("config", "mask_token_id")} | {"forward_check": forward_check(model)})
    shutil.copyfile(source / "tiny_qwen2_f64.safetensors", HERE / "tiny_qwen2_f64.safetensors")
    (HERE / "tiny_qwen2_f64.safetensors").chmod(0o644)
    print(sum(f.stat().st_size for f in HERE.iterdir() if f.is_file()), "bytes")  # noqa: T201


def shortened(value: Any) -> Any:
    if isinstance(value, float):
        return float(f"{value:.15g}")
    if isinstance(value, dict):
        return {k: shortened(v) for k, v in value.items()}
    return [shortened(v) for v in value] if isinstance(value, list) else value


def gating(full: dict[str, Any]) -> dict[str, Any]:
    """Cases as [vector, tau, beta, renormalise, weights]."""
    cases = [[c["vector"], c["tau"], c["beta"], c["sum_to_L"], c["weights_f64"]] for c in full["cases"]]
    chain = [
        {k: c[k] for k in ("vectors", "tau", "beta", "sum_to_L", "weights_independent_f64", "weights_official_chained_f64")}
        for c in full["batch_chain"]
    ]
    invalid = {c["name"]: c["raw"] for c in full["invalid_inputs"]}
    return {"vectors": full["vectors"], "cases": cases, "batch_chain": chain, "invalid_inputs": invalid}


def scores(full: dict[str, Any], fields: list[str]) -> dict[str, Any]:
    cases = [
        {"seq": c["seq"], "probe": PROBES[c["mode"], c["variant"]]} | {field: c[field] for field in fields}
        for c in full["cases"]
        if (c["mode"], c["variant"]) in PROBES
    ]
    kept = {key: full[key] for key in ("sequences", "mask_token_id", "noise_unit") if key in full}
    return kept | {"cases": cases}


def losses(full: dict[str, Any]) -> dict[str, Any]:
    """The second set: it holds an empty row."""
    chosen = full["sets"][1]
    mask = chosen["inputs"]["completion_mask"]
    cases = []
    for case in chosen["cases"]:
        if case["loss_type"] not in LOSS_TYPES or case["group"] not in LOSS_GROUPS:
            continue
        settings = {
            k: v
            for k, v in case.items()
            if k in full["defaults"] and not k.startswith(("sapo", "vespo")) and (v != full["defaults"][k] or k == "loss_type")
        }
        metrics = {k: v for k, v in case["metrics"].items() if k in METRICS}
        cases.append(settings | {"loss": case["loss_f64"], "grad": packed(case["grad_f64"], mask), "metrics": metrics})
    defaults = {k: v for k, v in full["defaults"].items() if not k.startswith(("sapo", "vespo"))}
    return {"defaults": defaults, "inputs": chosen["inputs"], "cases": cases}


def packed(rows: list[list[float]], mask: list[list[float]]) -> list[float]:
    """The masked entries in row-major order; the others must be 0."""
    pairs = [(value, m) for row, row_mask in zip(rows, mask, strict=True) for value, m in zip(row, row_mask, strict=True)]
    if any(value != 0 for value, m in pairs if not m):
        raise ValueError("a gradient outside the mask is not 0")
    return [value for value, m in pairs if m]


def advantages(full: dict[str, Any]) -> dict[str, Any]:
    dropped = ("advantages_f32",)
    return {"rewards": full["rewards"], "cases": [{k: v for k, v in c.items() if k not in dropped} for c in full["cases"]]}


def oar_loss(full: dict[str, Any]) -> dict[str, Any]:
    dropped = ("loss_f32", "grad_f32", "grad_f64", "token_weights_ragged", "lengths")
    return {
        "cases": [
            {k: v for k, v in c.items() if k not in dropped} | {"grad": packed(c["grad_f64"], c["action_mask"])}
            for c in full["cases"]
        ]
    }


def end_to_end(full: dict[str, Any]) -> dict[str, Any]:
    cases = [c for c in full["cases"] if c["model_dtype"] == "float64"]
    return {k: v for k, v in full.items() if k not in ("cases", "env")} | {"cases": cases}


def forward_check(model: dict[str, Any]) -> dict[str, Any]:
    return {k: model["forward_check"][k] for k in ("ids", "last_logits_f64")}


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    main(Path(sys.argv[1]))
