"""Who reads second prompts: the policy, the policy as it was some steps ago, or another model."""

from __future__ import annotations

import contextlib
from abc import abstractmethod
from collections.abc import Iterator
from contextlib import AbstractContextManager
from typing import Any, Literal

import torch
from torch import Tensor

from oar_lightning.common.ranges import PositiveInt, checked
from oar_lightning.credit.component import Component, Tools
from oar_lightning.policy.fingerprint import policy_fingerprint
from oar_lightning.policy.lm_head import in_shards
from oar_lightning.policy.pretrained import PretrainedPolicy


class Teacher(Component):
    """Base of those that read second prompts. `reads_all_rows`: whether all ranks have to prepare it at the same step."""

    reads_all_rows = False

    def check_trainer(self, sharded: bool) -> None:
        """Refuse, with a ValueError, a policy whose weights are sharded over ranks: before long work."""

    def prepare(self, model: Any, step: int) -> None:
        """Be ready to read in a rollout step, given the policy."""

    def looked_at(self) -> AbstractContextManager[None]:
        """Inside the block, what is prepared leaves no trace."""
        return contextlib.nullcontext()

    @abstractmethod
    def reading(self, model: Any) -> AbstractContextManager[Any]:
        """Inside the block, the model that reads, given the policy."""
        ...


class PolicyItself(Teacher):
    """The policy of the step."""

    def reading(self, model: Any) -> AbstractContextManager[Any]:
        return contextlib.nullcontext(model)


class LaggedWeights:
    """A copy of a policy's trained weights, renewed every so many rollout steps.

    Args:
        every: rollout steps for which a copy is used; None for ever.
        key: the setting that asks for copies.
        otherwise: what to set in its place.
    """

    def __init__(self, every: int | None, key: str, otherwise: str) -> None:
        self.every = every
        self.key = key
        self.otherwise = otherwise
        self.step = 0
        self.weights: dict[str, Tensor] = {}
        """Empty until the first copy; equal on all ranks."""

    def renew(self, model: Any, step: int) -> None:
        """Copy the weights where there is no copy yet, or one of `every` steps ago.

        Raises:
            ValueError: for weights that are sharded over ranks.
        """
        if self.weights and (self.every is None or 0 <= step - self.step < self.every):
            return
        self.check(in_shards(p for p in model.parameters() if p.requires_grad))
        trained = {name: p for name, p in model.named_parameters() if p.requires_grad}
        self.weights, self.step = {name: p.detach().clone() for name, p in trained.items()}, step

    def check(self, sharded: bool) -> None:
        """Raises: ValueError: for weights that are sharded over ranks."""
        if sharded:
            raise ValueError(
                f"{self.key} copies the policy's weights, which ZeRO-3 has sharded over the ranks; set {self.otherwise}, or "
                "use another strategy"
            )

    def forget(self) -> None:
        """Have no copy."""
        self.step, self.weights = 0, {}

    @contextlib.contextmanager
    def inside(self, model: Any) -> Iterator[None]:
        """Inside the block the model has the copied weights. Its parameters stay the same objects."""
        parameters = dict(model.named_parameters())
        own = {name: parameters[name].data for name in self.weights}
        try:
            for name, weight in self.weights.items():
                self.weights[name] = weight.to(own[name])  # those of a checkpoint are on the host
                parameters[name].data = self.weights[name]
            torch.clear_autocast_cache()  # which knows weights by their parameters
            yield
        finally:
            for name, weight in own.items():
                parameters[name].data = weight
            torch.clear_autocast_cache()

    def state_dict(self) -> dict[str, Any]:
        return {"step": self.step, "weights": dict(self.weights)} if self.weights else {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.step, self.weights = int(state.get("step", 0)), dict(state.get("weights", {}))


@checked("scorer.teacher")
class LaggedPolicy(Teacher):
    """The policy as it was some steps ago.

    A checkpoint without a copy leaves the next step to make one.

    Args:
        every: rollout steps after which its weights are copied from the policy anew.
    """

    reads_all_rows = True  # all ranks copy at the same step

    def __init__(self, every: PositiveInt = 10) -> None:
        self.copy = LaggedWeights(every, "scorer/teacher=lagged", "scorer/teacher=policy")

    def use(self, tools: Tools) -> None:
        """A run begins without a copy: the teacher may have served another run of this process."""
        self.copy.forget()

    def check_trainer(self, sharded: bool) -> None:
        self.copy.check(sharded)

    def prepare(self, model: Any, step: int) -> None:
        self.copy.renew(model, step)

    @contextlib.contextmanager
    def looked_at(self) -> Iterator[None]:
        before = self.copy.state_dict()
        try:
            yield
        finally:
            self.copy.load_state_dict(before)

    @contextlib.contextmanager
    def reading(self, model: Any) -> Iterator[Any]:
        with self.copy.inside(model):
            yield model

    def state_dict(self) -> dict[str, Any]:
        return self.copy.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Raises: ValueError: for the state of another teacher."""
        if set(state) - {"step", "weights"}:
            raise ValueError(
                f"scorer/teacher=lagged: the checkpoint is of another teacher ({state.get('name', 'unknown')}); use that one"
            )
        self.copy.load_state_dict(state)


class TeacherModel(PretrainedPolicy):
    """A teacher's model and tokenizer; messages name its keys."""

    key = "scorer.teacher"


@checked("scorer.teacher")
class GivenTeacher(Teacher):
    """A model of its own, which never learns. It has to have the policy's tokens: all of them, with the same ids.

    It is loaded once, before the first step, by every rank as a whole. Checkpoints hold its name and a digest of its weights.

    Args:
        name: hub id, local folder, or a built-in name.
        revision: see `policy.pretrained.PretrainedPolicy`, as for the rest.
    """

    def __init__(
        self,
        name: str,
        revision: str | None = None,
        dtype: Literal["float32", "bfloat16", "float16", "auto"] = "float32",
        attention: str = "sdpa",
        trust_remote_code: bool = False,
    ) -> None:
        self.spec = TeacherModel(name, revision, dtype, attention, trust_remote_code=trust_remote_code)
        self.model: Any = None
        self._digest = ""

    def use(self, tools: Tools) -> None:
        """Load the model where it is not loaded yet.

        Raises:
            ValueError: for a model that cannot be loaded, and one with other tokens than the policy's.
        """
        check_vocabulary(tools.tokenizer.get_vocab(), self.spec.load_tokenizer().get_vocab(), self.spec.name)
        if self.model is None:
            self.model = self.spec.load().model.requires_grad_(False)

    def prepare(self, model: Any, step: int) -> None:
        device = model.get_input_embeddings().weight.device
        if self.model.get_input_embeddings().weight.device != device:
            self.model.to(device)

    def reading(self, model: Any) -> AbstractContextManager[Any]:
        return contextlib.nullcontext(self.model)

    def state_dict(self) -> dict[str, Any]:
        return {"name": self.spec.name, "digest": self.digest()}

    def digest(self) -> str:
        """A digest of the weights, computed once."""
        self._digest = self._digest or policy_fingerprint(self.model)
        return self._digest

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Another name is a changed setting, which a resumed run refuses or allows by itself.

        Raises:
            ValueError: for other weights under the same name.
        """
        if state.get("name") == self.spec.name and state.get("digest") != self.digest():
            raise ValueError(
                f"scorer.teacher.name={self.spec.name}: its weights are not those that the checkpoint was trained with; give "
                "those, or these under another name with resume_changed=true"
            )


def check_vocabulary(policy: dict[str, int], teacher: dict[str, int], name: str) -> None:
    """Raises: ValueError: where a token of the policy is none of the teacher's, or has another id there."""
    other = sorted((number, token) for token, number in policy.items() if teacher.get(token) != number)
    if other:
        number, token = other[0]
        raise ValueError(
            f"scorer.teacher.name={name}: {len(other)} of the policy's {len(policy)} tokens are others in its vocabulary (the "
            f"first is {token!r}, {number} in the policy's and {teacher.get(token, 'missing')} in its own). It has to read the "
            "policy's tokens: give a model with the same tokenizer, or use scorer/teacher=lagged"
        )
