"""Values do not change: all dataclasses of the package are frozen, but for those named here."""

from __future__ import annotations

import re
from pathlib import Path

import oar_lightning

ROOT = Path(oar_lightning.__file__).parent
DATACLASS = re.compile(r"^@dataclass(.*)\n(?:@.*\n)*class (\w+)", re.MULTILINE)

GATHER_OR_KEEP_STATE = {
    "answers/audit.py: AuditReport",
    "common/activity.py: _Activity",
    "credit/scorers/oar_p/approximate.py: OarPApproximate",
    "credit/scorers/oar_p/exact.py: OarP",
    "credit/scorers/oar_p/steps.py: OarPSteps",
    "credit/scorers/total_effect/exact.py: TotalEffect",
    "inspection/completion_scores.py: CompletionScorer",
    "lab/run.py: Lab",
    "planning/scoring/total_effect.py: _SomeColumns",
}


def test_dataclasses_are_frozen() -> None:
    found = {}
    for path in ROOT.rglob("*.py"):
        for options, name in DATACLASS.findall(path.read_text(encoding="utf-8")):
            found[f"{path.relative_to(ROOT)}: {name}"] = "frozen=True" in options
    assert len(found) > 100
    assert {name for name, frozen in found.items() if not frozen} == GATHER_OR_KEEP_STATE
