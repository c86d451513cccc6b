"""What the studies say together: the tables and figures of ../VERDICT.md and README.md, from their files.

python reports/verdict/measure.py
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from by_rules import by_rules_table, draw_by_rules, leads_by_rules
from claims import claim_table, claims
from figures import draw_costs, draw_leads, draw_rates
from in_short import answers_table
from in_time import draw_in_time
from labels import listed, named
from leads import REPORTS, TOLD, Lead, decided_by, leads_over_grpo, mean_over, missing, tasks_of, verdicts
from settled import ROWS, rules
from summary import half, shown

from oar_lightning.common.markdown import fill, markdown

PAGE, WHOLE = REPORTS / "VERDICT.md", Path(__file__).with_name("README.md")


def lead_table(leads: Mapping[tuple[str, str], Lead], said: Mapping[tuple[str, str], str]) -> str:
    tasks = tasks_of(leads)
    lines = [["method", *(text for task in tasks for text in (f"`{task}`: minus GRPO, points", "verdict"))]]
    methods = sorted({method for _, method in leads}, key=lambda m: (m not in TOLD, -mean_over(leads, m), m))
    for method in methods:
        cells = [named(method) + (" (is told)" if method in TOLD else "")]
        for task in tasks:
            one = leads.get((task, method))
            cells += [f"{one.every:+.1f}", said[task, method] + decided_by(one)] if one else ["-", missing(task, method)]
        lines.append(cells)
    return markdown(lines)


def by_rules() -> str:
    """The arms of the study with rules of its own."""
    longer = listed([f"{count} (`{task}`)" for task, count in rules.MORE.items()])
    return "\n".join(
        [
            "Accuracy after 160 updates, at temperature 1, minus GRPO's after 160, in points [95 %]; of arms *in GRPO's time* "
            f"after as many updates as take that, of those *trained longer* after {longer}, the "
            "time of `turning_point`'s 160. Each has as many tuning runs, but for those at a higher rate and OAR-G with "
            "another tau or one level, which borrow OAR-G's or GRPO's. Arms that do not have all their pairs yet are left "
            "out. *Asked beforehand*: the answer to what was asked of the arm before its runs; where that is another "
            "comparison (*above GRPO trained longer*, say), the lead beside it was explored, as where nothing was asked (*-*). "
            "A star: the interval does not hold 0, but with all that was asked counted the difference cannot be told from "
            "chance.",
            "",
            by_rules_table(leads_by_rules()),
        ]
    )


def by_families(leads: Mapping[tuple[str, str], Lead]) -> str:
    """What the study of families says of each method."""
    said = verdicts(leads)
    return "\n".join(
        [
            shown(leads, said),
            "",
            "Half of what perfect credit gains:",
            "",
            half(leads, said),
            "",
            f"### Every method against GRPO ({len(leads)} comparisons on {len(tasks_of(leads))} tasks)",
            lead_table(leads, said),
        ]
    )


def main() -> None:
    leads = leads_over_grpo()
    fill(PAGE, answers_table(), claim_table(claims(leads, verdicts(leads))))
    fill(WHOLE, by_rules(), by_families(leads))
    folder = Path(__file__).parent
    draw_by_rules(leads_by_rules(), folder)
    draw_in_time(ROWS, folder)
    draw_leads(leads, folder)
    draw_rates(folder)
    draw_costs(leads, folder)


if __name__ == "__main__":
    main()
