"""The claims of ../VERDICT.md: what is claimed, and what the studies' files say of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from compared import FAIRLY, Claim, against, commands_of, compared, link
from leads import Lead, by_rate, families
from measured import MEASURE, STEPS, TARGETS, cost_text, cost_verdict, gradient_text, gradient_verdict, prediction
from settled import asked, each_asked, greedily, half_reached, of_levels, of_rate, of_tau, rules

from oar_lightning.common.markdown import markdown
from sweeps import concentration, gate_parts, made_by, rate_text, tau_means

SHORT = "80 updates"
OVER_GRPO = (
    ("Perfect credit beats GRPO, so that there is something to find", "oracle"),
    ("OAR-G beats GRPO (paper)", "oar_g"),
    ("OAR-P beats GRPO (paper)", "oar_p"),
)
AGAINST = (
    ("OAR-P does better than OAR-G (paper: at least as well)", "oar_p", "oar_g"),
    ("OAR-G's scores do better than random ones", "oar_g", "random"),
    ("OAR-G's scores do better than the same, shuffled", "oar_g", "shuffled"),
    ("OAR-G's scores do better than inverted ones", "oar_g", "inverted"),
)
"""Claim, method, the method that it is compared with."""


def by_rules(text: str, said: tuple[str, str], pairs: str = "12 pairs", tested: str = FAIRLY) -> Claim:
    """Of the study with rules of its own. `said`: verdict and figures."""
    return Claim(text, *said, pairs, tested, commands_of("settle"), link("settle"))


AT_OWN_SETTING = (
    "fairly: at OAR-G's own tuned rate and beta, one thing changed and not tuned anew; of these pairs the runs of OAR-G were "
    "known before"
)


def asked_again(older: Claim, said: tuple[str, str] | None, tested: str) -> Claim:
    """A claim that was tested weakly and then asked by rules, whose pairs decide once all are there (`said`)."""
    if said is None:
        return older
    word, figures = said
    before = f"before: {older.verdict}; {older.n}; {older.tested}; {older.figures}"
    made, page = f"{commands_of('settle')}; before: {older.made}", f"{link('settle')}, {older.page}"
    return Claim(older.text, word, f"{figures} ({before})", "12 pairs", tested, made, page)


def claims(leads: Mapping[tuple[str, str], Lead], said: Mapping[tuple[str, str], str]) -> list[Claim]:
    rates = [rate_text(task, "oar_g") for task in families.TASKS if by_rate(task, "oar_g")]
    lab = [prediction(task) for task in ("asides", "one_step")]
    return [
        *(compared(text, method, families.BASELINE, said, leads) for text, method in OVER_GRPO),
        *against(AGAINST),
        by_rules(
            "OAR-G beats GRPO where answers have several tokens, after as many updates and in as much time, and scores in its "
            "gate that say nothing, by rules written before these runs",
            asked(rules.AGAIN, "again"),
            "24 new pairs",
            f"{FAIRLY}; asked because other pairs had shown a sign of it",
        ),
        by_rules(
            "An estimate that does not know which step went wrong gains half of what perfect credit gains, by rules written "
            "before its runs (ours)",
            half_reached(),
            tested="weakly: its form was chosen on `asides`; the limit of its time was restated after most of its runs; it has "
            "greedy continuations verified, too",
        ),
        by_rules(
            "What such an estimate trains is better with greedy decoding, too, and not only less random, by rules written "
            "before those runs (ours)",
            greedily(),
        ),
        by_rules(
            "It matters for such estimates on which tokens the weight lies, and not only on how few, by rules written before "
            "the runs of each control (ours)",
            each_asked(rules.PLACES),
            tested="turning point weakly: its form was chosen on `asides`; shared states fairly",
        ),
        by_rules(
            "What turning point and shared states gain is more than their time buys, by rules written before these runs (ours)",
            each_asked(rules.TIMELY),
            tested="on `asides` turning point weakly: its form was chosen there, and what is guessed between searches by four "
            "runs with tuning's seeds; all else fairly",
        ),
        by_rules(
            "Credit leads GRPO where both train on for as many more updates, by rules written before these runs (ours)",
            each_asked(rules.LASTING),
            "12 pairs each, of those that have run",
            "weakly: the strength of perfect credit's gate was not tuned, and its rate on `asides` is the highest of those "
            "tried, so that it may gain more",
        ),
        by_rules(
            "An estimate that needs no further run of the model beats GRPO after as many updates, by a rule written before "
            "these runs (ours)",
            asked(rules.AT_NO_PASS, "again"),
            "24 new pairs",
            f"{FAIRLY}; asked because other pairs had shown a sign of it",
        ),
        asked_again(
            Claim(
                "OAR is stable for tau in 0.3 to 0.7 (paper)",
                "not contradicted",
                tau_means(),
                "2 seeds a cell",
                f"weakly: {SHORT}, not at a rate that was tuned for OAR-G",
                made_by("2026-11-22-tau_beta"),
                link("2026-11-22-tau_beta"),
            ),
            of_tau(),
            f"{AT_OWN_SETTING}; *yes* is an interval within {rules.MARGIN:g} points of 0",
        ),
        asked_again(
            Claim(
                "The gate needs both levels (paper)",
                "not shown",
                gate_parts(),
                "3 pairs",
                f"weakly: {SHORT}, a rate that suits GRPO",
                made_by("2026-11-22-gate_modes"),
                link("2026-11-22-gate_modes"),
            ),
            of_levels(),
            AT_OWN_SETTING,
        ),
        by_rules(
            "The mean over the answer is the best probe (paper), by rules written before the runs",
            asked(rules.PROBES),
            tested=f"{FAIRLY}, answers of three numbers",
        ),
        Claim(
            "The gate concentrates mass (paper)",
            "yes",
            concentration(),
            "5 runs a method",
            "fairly",
            "[commands of methods](2026-11-21-methods/README.md)",
            link("2026-11-21-methods"),
        ),
        asked_again(
            Claim(
                "The higher the rate, the worse OAR-G stands against GRPO at the same rate",
                "; ".join(word for word, _ in rates),
                "; ".join(text for _, text in rates),
                "up to 5 pairs a rate",
                "weakly: few pairs at most rates",
                commands_of("families"),
                link("families"),
            ),
            of_rate(),
            "fairly: of the two highest rates of OAR-G's tuning alone; the runs at the lower one were known before",
        ),
        Claim(
            "What the lab measures before training goes with what training gains",
            "; ".join(word for word, _, _ in lab),
            "rank correlation of the gain with the cosine between a method's gradient and that under Monte-Carlo values "
            f"(`{MEASURE}`), over all methods and without perfect credit, 80/20 and inverted scores: "
            f"{'; '.join(text for _, text, _ in lab)}",
            " and ".join(n for _, _, n in lab),
            "weakly: chosen from 38 measures by these methods; it does not say who beats GRPO",
            "`python reports/lab_training/measure.py --lab asides`, and `--lab one_step`",
            link("lab_training"),
        ),
        Claim(
            "OAR-G's weights change the gradient's direction (ours)",
            gradient_verdict(),
            gradient_text(),
            "128 batches a policy",
            "fairly, of two policies of one task; one policy of `asides` on its page",
            "commands of [mechanism](mechanism/README.md)",
            link("mechanism"),
        ),
        Claim(
            "A step costs at most our target, in GRPO steps: "
            + ", ".join(f"{TARGETS[key]:g} with {name}" for key, name in STEPS.items()),
            cost_verdict(),
            cost_text(),
            "1 machine",
            "fairly, on one CPU and one small model",
            "command of [benchmark_tiny](benchmark_tiny/README.md)",
            link("benchmark_tiny"),
        ),
    ]


def claim_table(found: Sequence[Claim]) -> str:
    return markdown(
        [
            ["claim", "verdict", "figures: points [95 %] where nothing else is said", "n", "tested", "made by", "page"],
            *map(list, found),
        ]
    )
