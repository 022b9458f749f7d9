"""What a trial asks of this trainer, read from its configuration without importing torch."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, TypeVar

from orchestrator.vocabulary.units import GB

T = TypeVar("T")

RECIPE = "recipe"

MODEL_ARGUMENTS = frozenset(
    {
        "name",
        "vocab_size",
        "make_vocab_size_divisible_by",
        "position_embedding_type",
        "share_embeddings_and_output_weights",
        "untie_embeddings_and_output_weights",
    }
)
"""Settings of `model` that are arguments of GPTModel, or none of Megatron Core's at all."""


class RejectedError(ValueError):
    """This trainer cannot run what is asked. The message says what is wrong, which setting, and what would work."""


@dataclass(frozen=True)
class Recompute:
    """The four settings, spelled as in Megatron Core."""

    granularity: str | None = None
    modules: list[str] | None = None
    method: str | None = None
    num_layers: int | None = None


@dataclass(frozen=True)
class Parallelism:
    """How the model is spread over ranks."""

    tp: int = 1
    pp: int = 1
    vpp: int | None = None
    cp: int = 1
    ep: int = 1
    etp: int | None = None
    sequence_parallel: bool = False
    layout: str | list[list[str]] | None = None

    @property
    def expert_tp(self) -> int:
        """Ranks that share one expert; as many as `tp` where `etp` says nothing."""
        return self.tp if self.etp is None else self.etp


@dataclass(frozen=True)
class Training:
    """Sizes in tokens and samples."""

    seq_length: int
    micro_batch_size: int
    global_batch_size: int
    train_iters: int
    seed: int = 1234
    resident_tokens: int = 0
    """Tokens of training data made when the data is built and kept, 8 bytes each; 0: made when they are needed."""


@dataclass(frozen=True)
class Fault:
    """A fault to commit on purpose, to test what becomes of it."""

    kind: str
    stage: str
    iteration: int = 1
    rank: int = 0
    entry: int = 1
    """Which visit to the stage within the iteration, from 1."""
    allocation: int | None = None
    """For `oom`: which allocation of that visit fails, from 1; None: the visit itself."""
    seconds: float = 86_400.0
    """For `sleep`."""


@dataclass(frozen=True)
class Options:
    """The settings of `trainer`."""

    memory_limit_bytes: int | None = None
    threads_per_rank: int = 1
    learning_rate: float = 1e-3
    use_distributed_optimizer: bool = True
    overlap_grad_reduce: bool = False
    overlap_param_gather: bool = False
    check_for_nan_in_grad: bool = True
    fault: Fault | None = None


@dataclass(frozen=True)
class Request:
    """A trial for this trainer."""

    world_size: int
    recompute: Recompute
    parallelism: Parallelism
    training: Training
    options: Options
    transformer: dict[str, Any]
    """Settings of `model` that belong to TransformerConfig or MLATransformerConfig, as they were given."""
    model: dict[str, Any] = field(default_factory=dict)
    """Those that belong to the model around it (`MODEL_ARGUMENTS`)."""
    precision: dict[str, Any] = field(default_factory=dict)

    @property
    def multi_latent_attention(self) -> bool:
        return bool(self.transformer.get("multi_latent_attention"))

    @property
    def params_dtype(self) -> str:
        """`fp32` or `bf16`."""
        return str(self.precision.get("params_dtype", "fp32"))

    @property
    def data_parallel(self) -> int:
        """Ranks that hold the same part of the model; the world size must have been checked."""
        layout = self.parallelism
        return self.world_size // (layout.tp * layout.pp * layout.cp)

    @property
    def num_microbatches(self) -> int:
        """Microbatches of one pipeline in one step."""
        return self.training.global_batch_size // (self.training.micro_batch_size * self.data_parallel)

    @property
    def tied_embeddings(self) -> bool:
        """Whether the output layer uses the embedding's weights (Megatron Core's default: no)."""
        shared = self.model.get("share_embeddings_and_output_weights")
        untied = self.model.get("untie_embeddings_and_output_weights")
        return bool(shared) if shared is not None else untied is False

    @property
    def padded_vocab_size(self) -> int:
        """The vocabulary as Megatron pads it: a multiple of `make_vocab_size_divisible_by` (128) times tp."""
        multiple = int(self.model.get("make_vocab_size_divisible_by", 128)) * self.parallelism.tp
        size = int(self.model.get("vocab_size", 0))
        return -(-size // multiple) * multiple


def read_request(config: dict[str, Any], world_size: int) -> Request:
    """The request in a trial's configuration (`TrialSpec.config`).

    Raises:
        RejectedError: a setting is missing, has the wrong type, or is the word `recipe`.
    """
    _refuse_recipe(config, "")
    model = _group(config, "model")
    parallelism = dict(_group(config, "parallelism"))
    parallelism.pop("world_size", None)
    return Request(
        world_size=world_size,
        recompute=Recompute(
            granularity=config.get("recompute_granularity"),
            modules=config.get("recompute_modules"),
            method=config.get("recompute_method"),
            num_layers=config.get("recompute_num_layers"),
        ),
        parallelism=_make(Parallelism, "parallelism", parallelism),
        training=_training(_group(config, "training")),
        options=_options(_group(config, "trainer")),
        transformer={name: value for name, value in model.items() if name not in MODEL_ARGUMENTS},
        model={name: value for name, value in model.items() if name in MODEL_ARGUMENTS},
        precision=_group(config, "precision"),
    )


def _refuse_recipe(value: Any, where: str) -> None:
    if value == RECIPE and where != "model.name":
        raise RejectedError(
            f"{where}=recipe leaves the setting to a recipe, and trainer=mcore_cpu has none: give a value, "
            "or use trainer=bridge"
        )
    if isinstance(value, dict):
        for name, item in value.items():
            _refuse_recipe(item, f"{where}.{name}" if where else str(name))


def _group(config: dict[str, Any], name: str) -> dict[str, Any]:
    group = config.get(name) or {}
    if not isinstance(group, dict):
        raise RejectedError(f"{name} must be a group of settings, not {group!r}")
    return group


def _training(group: dict[str, Any]) -> Training:
    return _make(Training, "training", {name: value for name, value in group.items() if name != "steady_window"})


_OTHERS = frozenset({"name", "memory_limit_gb", "stall_seconds", "time_limit", "environment", "fault"})
"""Settings of `trainer` that the supervisor reads, or that are read here under another name."""


def _options(group: dict[str, Any]) -> Options:
    own = {name: value for name, value in group.items() if name not in _OTHERS and value is not None}
    limit, fault = group.get("memory_limit_gb"), group.get("fault")
    if limit is not None:
        if not isinstance(limit, (int, float)) or limit <= 0:
            raise RejectedError(f"trainer.memory_limit_gb={limit!r} must be a number of GB (1e9 bytes) above zero")
        own["memory_limit_bytes"] = round(limit * GB)
    if fault is not None:
        own["fault"] = _make(Fault, "trainer.fault", {name: item for name, item in fault.items() if item is not None})
    return _make(Options, "trainer", own)


def _make(kind: type[T], where: str, values: dict[str, Any]) -> T:
    try:
        return kind(**values)
    except TypeError as error:
        raise RejectedError(f"{where}: {str(error).split('.__init__() ')[-1]}") from None
