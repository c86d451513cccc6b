"""Every metric that a run logs: its name, unit and meaning. docs/tracking.md has this as a table.

A name may hold placeholders: ``<set>`` an evaluation set, ``<level>`` a level of difficulty, ``<k>`` and ``<j>`` numbers of
samples, ``<term>`` a reward term, ``<reason>`` why problems were dropped, ``<kind>`` of a curriculum, ``<variant>`` and
``<phase>`` of the timing benchmark, ``<measure>`` what the unit is in the name of. Names are TRL's where TRL has one.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

SHARE, NUMBER, SECONDS, TOKENS, NATS = "share", "number", "s", "tokens", "nats"

PLACEHOLDERS = {
    "set": r"[^/]+",
    "level": r"\w+",
    "k": r"\d+",
    "j": r"\d+",
    "term": r"[^/]+",
    "reason": r"\w+",
    "kind": r"[\w.-]+",
    "variant": r"[^/]+",
    "phase": r"[a-z_]+",
    "measure": r"\w+",
}
"""Placeholder -> what may stand there."""


@dataclass(frozen=True)
class Metric:
    """One metric, or several whose names differ in a placeholder.

    Args:
        group: heading under which the table shows it.
        name: as logged, with placeholders.
        unit: of the value.
        meaning: what the value says.
        when: the condition under which it is logged; empty for always.
    """

    group: str
    name: str
    unit: str
    meaning: str
    when: str = ""

    def matches(self, logged: str) -> bool:
        parts = re.split(r"<(\w+)>", self.name)
        pattern = "".join(PLACEHOLDERS[part] if i % 2 else re.escape(part) for i, part in enumerate(parts))
        return re.fullmatch(pattern, logged) is not None


def entries_of(logged: str) -> list[Metric]:
    """The entries that a logged name matches; there should be exactly one."""
    return [metric for metric in METRICS if metric.matches(logged)]


def _group(group: str, *rows: tuple[str, ...]) -> tuple[Metric, ...]:
    return tuple(Metric(group, *row) for row in rows)


SCORED = "a completion was scored"
LEARNED = "a completion had a signal"
CONTINUING = "`scorer=monte_carlo`, `scorer=turning_point`"
DRAWN = "`curriculum=difficulty`"
WITH_VLLM = "`engine=vllm`"
WARM_START = "`task=warm_start`"

METRICS: tuple[Metric, ...] = (
    *_group(
        "First in MLflow's UI (copies, in MLflow alone)",
        ("Main/reward", "reward", "`reward`", "`task=train`"),
        ("Main/accuracy", SHARE, "`rewards/accuracy`: of the sampled completions", "`task=train`"),
        ("Main/<set> avg_at_<k>", SHARE, "`eval/<set>/avg_at_<k>`: the sampled accuracy on an evaluation set"),
    ),
    *_group(
        "Rewards of the sampled completions",
        ("reward", "reward", "mean of the weighted sums of all reward terms"),
        ("reward_std", "reward", "standard deviation within a group, mean over groups"),
        (
            "frac_reward_zero_std",
            SHARE,
            "groups in which all rewards are equal; with `advantage.confidence_from` or "
            "`advantage.aggregation=normalize_then_sum` they may teach all the same (`credit/no_advantage_frac`)",
        ),
        ("rewards/<term>", "reward", "mean of one reward term, unweighted, over the completions that it applies to"),
        ("verdict/correct", SHARE, "answers judged equal to the gold answer", "reward term `accuracy`"),
        ("verdict/incorrect", SHARE, "answers judged different from it, and completions without one", "reward term `accuracy`"),
        ("verdict/unparseable", SHARE, "answers that could not be read", "reward term `accuracy`"),
        ("verdict/timeout", SHARE, "answers that were not judged in time", "reward term `accuracy`"),
    ),
    *_group(
        "Sampled completions",
        ("completions/mean_length", TOKENS, "mean length, EOS included"),
        ("completions/min_length", TOKENS, "shortest completion"),
        ("completions/max_length", TOKENS, "longest completion"),
        ("completions/clipped_ratio", SHARE, "completions cut off by `rollout.max_new_tokens`"),
        ("num_tokens", TOKENS, "prompts and completions of one batch of rollouts"),
    ),
    *_group(
        "Held-out accuracy",
        ("eval/<set>/avg_at_<k>", SHARE, "mean accuracy of k samples a problem"),
        ("eval/<set>/avg_at_<k>_low", SHARE, "its 95 % interval over problems (Wilson's), lower end"),
        ("eval/<set>/avg_at_<k>_high", SHARE, "the interval's upper end"),
        ("eval/<set>/pass_at_<j>", SHARE, "unbiased pass@j (arXiv 2107.03374), for powers of two up to k and for k"),
        ("eval/<set>/pass_at_<k>_low", SHARE, "the interval's lower end, for j = k"),
        ("eval/<set>/pass_at_<k>_high", SHARE, "the interval's upper end, for j = k"),
        ("eval/<set>/maj_at_<k>", SHARE, "majority vote over classes of equal answers"),
        ("eval/<set>/maj_at_<k>_low", SHARE, "the interval's lower end"),
        ("eval/<set>/maj_at_<k>_high", SHARE, "the interval's upper end"),
        ("eval/<set>/greedy", SHARE, "accuracy of greedy decoding", "`evaluation.greedy=true`"),
        ("eval/<set>/greedy_low", SHARE, "the interval's lower end", "`evaluation.greedy=true`"),
        ("eval/<set>/greedy_high", SHARE, "the interval's upper end", "`evaluation.greedy=true`"),
        ("eval/<set>/answered", SHARE, "samples with an answer"),
        ("eval/<set>/truncated", SHARE, "samples cut off by the token limit"),
        ("eval/<set>/level_<level>/avg_at_<k>", SHARE, "mean accuracy of one level", "problems have a level"),
        ("eval/<set>/level_<level>/avg_at_<k>_low", SHARE, "the interval's lower end", "problems have a level"),
        ("eval/<set>/level_<level>/avg_at_<k>_high", SHARE, "the interval's upper end", "problems have a level"),
        ("eval/<set>/level_<level>/problems", NUMBER, "problems of the level", "problems have a level"),
    ),
    *_group(
        "Update",
        (
            "loss",
            "loss",
            "of the optimizer step, exact for any number of passes. With `loss=grpo`, one step per batch of rollouts and no "
            "other term its value is about 0 (ratios are 1, advantages sum to 0), its gradient is not; other reductions count "
            "long completions more. No measure of progress",
            LEARNED,
        ),
        ("entropy", NATS, "mean entropy of the policy over the tokens that the update read", LEARNED),
        (
            "entropy_coef",
            "coefficient",
            "of the entropy term in this step; with `entropy=step` 0 where there is none",
            "`entropy=adaptive`, `entropy=step`",
        ),
        ("entropy_target", NATS, "the entropy that is aimed at; with `entropy=adaptive` from step 2 on", "the same"),
        ("kl", NATS, "k3 estimate of KL(policy || reference)", "`loss.kl_coef` is not 0 and `loss.kl_from` has come"),
        ("confidence", "probability", "geometric mean over an answer's tokens", "`advantage.confidence_from` has come"),
        ("grad_norm", "norm", "of the gradient, before clipping", LEARNED),
        ("learning_rate", "rate", "of the optimizer step"),
        (
            "clip_ratio/low_mean",
            SHARE,
            "tokens clipped at the lower bound, of those that the update read (without a KL or entropy term those of "
            "completions with an advantage)",
            "`loss.surrogate=clip`",
        ),
        ("clip_ratio/high_mean", SHARE, "the same at the upper bound", "`loss.surrogate=clip`"),
        ("clip_ratio/region_mean", SHARE, "tokens clipped at either", "`loss.surrogate=clip`"),
        ("clip_ratio/cispo_mean", SHARE, "tokens with a positive advantage whose weight is capped", "`loss.surrogate=cispo`"),
        ("update/padding", SHARE, "padding among the tokens of all passes", LEARNED),
        ("update/passes", NUMBER, "forward-backward passes of the step", LEARNED),
        ("update/microbatch_tokens", TOKENS, "padded tokens of the largest pass, without prompts that are run once", LEARNED),
        ("update/skipped_steps", NUMBER, "steps left out so far because the gradient was not finite", "a step is left out"),
        ("too_long_frac", SHARE, "demonstrations longer than `supervised.max_tokens`, which are left out", WARM_START),
    ),
    *_group(
        "Credit",
        ("credit/ess_ratio", SHARE, "(sum w)² / (n sum w²) of a completion's weights; 1 for uniform ones", SCORED),
        ("credit/top10_mass", SHARE, "weight on the top 10 % of tokens; 0.1 for uniform weights", SCORED),
        ("credit/gini", SHARE, "Gini coefficient of the weights; 0 for uniform ones", SCORED),
        ("credit/uniform_frac", SHARE, "completions whose tokens all have the same advantage, as in GRPO", SCORED),
        ("credit/weight_max", "weight", "largest weight; 1 for uniform ones", SCORED),
        ("credit/floor_frac", SHARE, "tokens at the gate's floor", SCORED),
        ("credit/boost_frac", SHARE, "tokens above the gate's threshold", SCORED),
        (
            "credit/mass_error",
            SHARE,
            "relative distance of the sum of weights' sizes from the region's number of tokens",
            SCORED,
        ),
        ("credit/mass", "weight", "mean weight of a completion's tokens in the region; signed weights cancel", SCORED),
        ("credit/sign_flips", SHARE, "tokens whose advantage has another sign than their completion's", SCORED),
        (
            "credit/saturated_frac",
            SHARE,
            "tokens whose score lies at or beyond a bound of the gate",
            "`gate=direct`, `gate=signed`",
        ),
        ("credit/changed_frac", SHARE, "tokens whose advantage the scores change", "`gate=contrast`"),
        ("credit/continuations", NUMBER, "continuations sampled for values of prefixes, of all ranks", CONTINUING),
        ("credit/segments", NUMBER, "cuts of a completion", "`scorer=monte_carlo`, `scorer=oar_p_steps`"),
        (
            "credit/turned_frac",
            SHARE,
            "completions with another reward than their prompt's greedy completion; between searches a guess",
            "`scorer=turning_point`",
        ),
        (
            "credit/right_guess_frac",
            SHARE,
            "guesses, as they are made between searches, that a search confirms: who turned, and at which token",
            "`scorer=turning_point`, in steps that search",
        ),
        (
            "credit/guessed_turn_frac",
            SHARE,
            "completions that turned of which such a guess would have been right",
            "`scorer=turning_point`, in steps that search",
        ),
        (
            "credit/shared_frac",
            SHARE,
            "anchor tokens before which two or more completions were in one state",
            "`scorer=anchor_states`",
        ),
        ("credit/planning_frac", SHARE, "tokens of planning phrases", "`scorer=hicra`"),
        ("credit/no_advantage_frac", SHARE, "completions of which no token has an advantage"),
        ("credit/no_span_frac", SHARE, "completions without a final answer; they keep weight 1"),
        ("credit/invalid_frac", SHARE, "completions whose scores were not usable; they keep weight 1", SCORED),
        ("credit/corr_entropy", "correlation", "of importance and entropy (Pearson, within a completion)", LEARNED),
        ("credit/corr_position", "correlation", "of importance and position (Pearson, within a completion)", SCORED),
        (
            "credit/rank_stability",
            "correlation",
            "Spearman agreement of two noise draws, or means of draws",
            "`scorer=oar_g`",
        ),
        (
            "credit/forward_equivalents",
            NUMBER,
            "cost of scoring: tokens through the model, padded ones too, over the batch's own",
            "the scorer counts them",
        ),
        (
            "credit/unread_frac",
            SHARE,
            "completions that the scorer could not read; they keep weight 1, but with `gate=direct` where their scores are 0",
            "`scorer=oracle`, `scorer=information_gain`, `scorer=spae`, `scorer=rlsd`, `scorer=serl`, `scorer=contrast`",
        ),
        ("credit/explore_frac", SHARE, "reasoning tokens of steps that explore", "`entropy=explore`"),
        (
            "credit/implicit_loss",
            NATS,
            "of the scorer's own model, before it learns from the completions; log 2 is no knowledge",
            "`scorer=prime`, `scorer=istar`, and there is something to learn",
        ),
        (
            "credit/implicit_accuracy",
            SHARE,
            "pairs of a right and a wrong completion of a group that the own model, before it learns from them, tells apart",
            "the same, and there are such pairs",
        ),
        ("credit/implicit_grad_norm", "norm", "of the own model's gradient, before clipping", "the same"),
        (
            "credit/implicit_kept_frac",
            SHARE,
            "completions of groups that are neither too easy nor too hard; the others get no advantage",
            "`scorer=prime`, `scorer=istar` (always 1)",
        ),
        (
            "credit/unjudged_frac",
            SHARE,
            "completions without a judgement: their outcome alone counts",
            "`scorer=capo`",
        ),
        ("credit/wrong_frac", SHARE, "completions with a step that the judge calls wrong", "`scorer=capo`"),
        (
            "credit/judge_calls",
            NUMBER,
            "requests to the judge, repeated ones included, of all ranks",
            "`scorer/judge=endpoint`",
        ),
        ("credit/judge_tokens", TOKENS, "tokens of requests and answers, of all ranks", "`scorer/judge=endpoint`"),
        ("credit/judge_unreadable", NUMBER, "answers that were not of the form that was asked for", "`scorer/judge=endpoint`"),
        ("credit/judge_failed", NUMBER, "answers that did not come", "`scorer/judge=endpoint`"),
        (
            "credit/judge_unpaid",
            NUMBER,
            "answers that were not asked for, since the budget was spent",
            "`scorer/judge=endpoint`",
        ),
        ("credit/inexact_frac", SHARE, "completions for which the oracle fell back to the step results", "`scorer=oracle`"),
    ),
    *_group(
        "Engine and policy",
        ("sampler/ratio_mean", "ratio", "policy / engine probability of the sampled tokens; 1 in expectation", WITH_VLLM),
        ("sampler/capped_frac", SHARE, "tokens whose ratio is over `loss.sampler_ratio_cap`", WITH_VLLM),
        ("sampler/logprob_difference", NATS, "mean distance of the two log-probabilities", WITH_VLLM),
    ),
    *_group(
        "Data",
        ("data/dropped/<reason>", NUMBER, "training problems dropped so far, by reason (over-long, contaminated)", "one is"),
        ("data/curriculum/stage", NUMBER, "stage of the curriculum that the last problems were taken in", DRAWN),
        ("data/curriculum/kinds", NUMBER, "problems or levels with a pass rate", DRAWN),
        ("data/curriculum/pass_rate", SHARE, "mean of their pass rates, moving averages over groups of completions", DRAWN),
        ("data/curriculum/weight", SHARE, "mean of the probabilities with which a problem of a kind is taken", DRAWN),
        ("data/curriculum/passed_over_frac", SHARE, "problems passed over so far, of those that could be taken", DRAWN),
        ("data/curriculum/pass_rate/<kind>", SHARE, "pass rate of a level or an extra column's value", "up to 32 of them"),
        ("data/curriculum/weight/<kind>", SHARE, "probability with which a problem of it is taken", "up to 32 of them"),
    ),
    *_group(
        "Time and memory of a step",
        ("time/generate_s", SECONDS, "sampling; of the slowest rank, as are all seconds below up to those of the update"),
        ("time/reward_s", SECONDS, "judging"),
        ("time/score_s", SECONDS, "scoring"),
        ("time/judge_s", SECONDS, "the part of scoring that waits for the judge", "`scorer/judge=endpoint`"),
        ("time/continuations_s", SECONDS, "the part of scoring that samples continuations", CONTINUING),
        ("time/logprobs_s", SECONDS, "old and reference log-probabilities, of which a scorer's own are scoring"),
        ("time/update_s", SECONDS, "forward, backward and optimizer; an evaluation that follows is not counted"),
        ("time/step_s", SECONDS, "sum of the five phases"),
        ("memory/token_budget_update", TOKENS, "the budget now", "`update.token_budget=auto`, and one is known"),
        ("memory/token_budget_rollout", TOKENS, "the budget now", "`rollout.token_budget=auto`, and one is known"),
        ("memory/token_budget_scorer", TOKENS, "the budget now", "`scorer.token_budget=auto`, and one is known"),
    ),
    *_group(
        "Final metrics of a run",
        ("objective", SHARE, "sampled accuracy on the first evaluation set after training"),
        ("objective_low", SHARE, "its 95 % interval over problems (Wilson's), lower end"),
        ("objective_high", SHARE, "the interval's upper end"),
        ("time/total_s", SECONDS, "of training, over all starts of the run"),
        ("time/total_cpu_s", SECONDS, "of rank 0's process on processors, all its threads, over all starts", "`task=train`"),
        ("time/total_generate_s", SECONDS, "of sampling in the whole run", "`task=train`"),
        ("time/total_reward_s", SECONDS, "of judging", "`task=train`"),
        ("time/total_score_s", SECONDS, "of scoring", "`task=train`"),
        ("time/total_logprobs_s", SECONDS, "of old and reference log-probabilities", "`task=train`"),
        ("time/total_update_s", SECONDS, "of updates", "`task=train`"),
    ),
    *_group(
        "The machine of rank 0, every 10 s",
        (
            "system/<measure>",
            "in the name",
            "use of CPU, memory, disk, network and GPU, by MLflow's monitor",
            "`logger.system_metrics=true`",
        ),
    ),
    *_group(
        "A sweep's own run",
        ("trials/complete", NUMBER, "trials that finished", "a sweep"),
        ("trials/failed", NUMBER, "trials that failed", "a sweep"),
        ("trials/pruned", NUMBER, "trials that were ended as hopeless", "a sweep"),
        ("best_objective", "objective", "of the best trial so far", "a sweep with one objective"),
    ),
    *_group(
        "The timing benchmark",
        ("benchmark/<variant>/<phase>_s", SECONDS, "median of a phase", "`task=benchmark`"),
        ("benchmark/<variant>/step_cpu_s", SECONDS, "processor time of a step, all threads, median", "`task=benchmark`"),
        ("benchmark/<variant>/step_ratio", "ratio", "step over GRPO's step, median of pairs", "`task=benchmark`"),
    ),
)
