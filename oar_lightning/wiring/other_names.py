"""What settings of TRL's `GRPOConfig` and of verl are called here: for the advice on an unknown key, and the page about it."""

from __future__ import annotations

from typing import NamedTuple


class OtherName(NamedTuple):
    """`theirs`: TRL's names have no block, verl's are dotted. `here`: what to write."""

    theirs: str
    here: str
    note: str = ""

    @property
    def library(self) -> str:
        return "verl" if "." in self.theirs else "TRL"

    @property
    def advice(self) -> str:
        return f"{self.library}'s {self.theirs} is {self.here} here{f' ({self.note})' if self.note else ''}"


_VERL = "actor_rollout_ref"
_STEPS = "a run's length is in optimizer steps"
_SIZE = "a number of passes, where theirs is the size of one"

OTHER_NAMES = (
    OtherName("model_name_or_path", "policy=hf policy.name"),
    OtherName("learning_rate", "optimizer.lr"),
    OtherName("weight_decay", "optimizer.weight_decay"),
    OtherName("adam_beta1", "optimizer.betas", "a list, [beta1, beta2]"),
    OtherName("adam_epsilon", "optimizer.eps"),
    OtherName("lr_scheduler_type", "schedule.name"),
    OtherName("max_grad_norm", "trainer.gradient_clip_val"),
    OtherName("num_train_epochs", "trainer.max_steps", _STEPS),
    OtherName("per_device_train_batch_size", "update.microbatches", _SIZE),
    OtherName("gradient_accumulation_steps", "update.microbatches", "the passes of an optimizer step on a rank"),
    OtherName(
        "generation_batch_size", "update.problems", "completions there; problems here, with update.group_size completions each"
    ),
    OtherName(
        "steps_per_generation", "update.minibatches", "optimizer steps a batch: theirs divided by gradient_accumulation_steps"
    ),
    OtherName("num_iterations", "update.inner_epochs"),
    OtherName("num_generations", "update.group_size"),
    OtherName("max_completion_length", "rollout.max_new_tokens"),
    OtherName("use_vllm", "engine=vllm"),
    OtherName("vllm_gpu_memory_utilization", "engine.gpu_memory_utilization"),
    OtherName("vllm_max_model_length", "engine.max_model_len"),
    OtherName("vllm_enable_sleep_mode", "engine=vllm_sleep"),
    OtherName("beta", "loss.kl_coef"),
    OtherName("epsilon", "loss.clip_low", "and loss.clip_high, which does not follow it"),
    OtherName("epsilon_high", "loss.clip_high", "with loss=cispo loss.ratio_cap"),
    OtherName("delta", "loss.ratio_max"),
    OtherName("loss_type", "loss", "an option of the group; TRL's default is loss.reduction=dapo, ours grpo"),
    OtherName("importance_sampling_level", "loss.ratio"),
    OtherName("scale_rewards", "advantage.scale"),
    OtherName("multi_objective_aggregation", "advantage.aggregation"),
    OtherName("reward_weights", "reward.weights", "by the name of a reward"),
    OtherName("mask_truncated_completions", "reward.weights.overlong", "a punishment near the limit; none is left out"),
    OtherName("vllm_importance_sampling_clip_max", "loss.sampler_ratio_cap"),
    OtherName("top_entropy_quantile", "+experiment=eighty_twenty"),
    OtherName("eval_steps", "evaluation.every_n_steps"),
    OtherName("per_device_eval_batch_size", "evaluation.batch_problems", "problems of all ranks, where theirs are completions"),
    OtherName("save_steps", "checkpoint_every_n_steps"),
    OtherName("save_total_limit", "checkpoints.last", "beside the last two"),
    OtherName("metric_for_best_model", "checkpoints.monitor", "with checkpoints.best=1"),
    OtherName("resume_from_checkpoint", "resume=true", "or ckpt_path, which takes a run's folder"),
    OtherName("output_dir", "output_root"),
    OtherName("run_name", "logger.run_name"),
    OtherName("report_to", "logger"),
    OtherName("hub_model_id", "push_to_hub", "of task=export"),
    OtherName("bf16", "trainer.precision=bf16-mixed"),
    OtherName("deepspeed", "trainer=deepspeed_zero2", "a file of each stage is in conf/trainer"),
    OtherName(f"{_VERL}.model.path", "policy=hf policy.name"),
    OtherName(f"{_VERL}.actor.optim.lr", "optimizer.lr"),
    OtherName(f"{_VERL}.actor.ppo_epochs", "update.inner_epochs"),
    OtherName(f"{_VERL}.actor.ppo_mini_batch_size", "update.minibatches", "a number of optimizer steps, not their size"),
    OtherName(f"{_VERL}.actor.ppo_micro_batch_size_per_gpu", "update.microbatches", _SIZE),
    OtherName(f"{_VERL}.actor.ppo_max_token_len_per_gpu", "update.token_budget"),
    OtherName(f"{_VERL}.actor.clip_ratio_low", "loss.clip_low"),
    OtherName(f"{_VERL}.actor.clip_ratio_high", "loss.clip_high"),
    OtherName(f"{_VERL}.actor.clip_ratio_c", "loss.ratio_max"),
    OtherName(f"{_VERL}.actor.loss_agg_mode", "loss.reduction", "token-mean is dapo, seq-mean-token-mean grpo"),
    OtherName(f"{_VERL}.actor.kl_loss_coef", "loss.kl_coef"),
    OtherName(f"{_VERL}.actor.entropy_coeff", "loss.entropy_coef"),
    OtherName(f"{_VERL}.rollout.n", "update.group_size"),
    OtherName(f"{_VERL}.rollout.name", "engine"),
    OtherName(f"{_VERL}.rollout.gpu_memory_utilization", "engine.gpu_memory_utilization"),
    OtherName("data.train_batch_size", "update.problems", "of all ranks"),
    OtherName("data.max_prompt_length", "data.max_prompt_tokens"),
    OtherName("data.max_response_length", "rollout.max_new_tokens"),
    OtherName("data.train_files", "data=files data.train.paths", "its columns: data.train.question_column=prompt.0.content"),
    OtherName("algorithm.adv_estimator", "+experiment"),
    OtherName("algorithm.norm_adv_by_std_in_grpo", "advantage.scale", "false is none"),
    OtherName("trainer.total_training_steps", "trainer.max_steps"),
    OtherName("trainer.total_epochs", "trainer.max_steps", _STEPS),
    OtherName("trainer.test_freq", "evaluation.every_n_steps"),
    OtherName("trainer.save_freq", "checkpoint_every_n_steps"),
)


TOO_COMMON = "name"
"""The end of many keys, which tells nothing of whose it is."""


def last_part(key: str) -> str:
    return key.rpartition(".")[2]


def other_name(key: str) -> OtherName | None:
    """The entry whose name is `key`, or else the first that ends as it does: `loss.beta` is TRL's `beta`.
    An end that is `TOO_COMMON` finds none."""
    whole = next((name for name in OTHER_NAMES if name.theirs == key), None)
    end = last_part(key)
    return whole or next((name for name in OTHER_NAMES if last_part(name.theirs) == end != TOO_COMMON), None)
