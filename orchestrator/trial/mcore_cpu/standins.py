"""Every stand-in that lets Megatron Core train on the CPU, in one place.

Each takes the place of one name (a seam): of `torch.cuda`, which Megatron Core calls without asking whether there is
a device; of torch functions that it gives a CUDA device by name; and of names that only exist with Transformer
Engine. None changes what is computed or kept for backward. Checked against Megatron Core 0.16.1 and 0.15.3.

`install_for_torch` comes before Megatron Core is imported, `install_for_megatron` after.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

CHECKED = ("0.16.1", "0.15.3")
"""Megatron Core versions that every stand-in was checked against."""

_CPU = torch.device("cpu")


class SeamGoneError(RuntimeError):
    """A name that a stand-in replaces does not exist in the installed version."""


@dataclass(frozen=True)
class StandIn:
    """One replaced name: `owner` is a module or a class in one, `why` says what fails without it."""

    owner: str
    name: str
    replacement: Callable[[Any], Any]
    """The original to what takes its place; the original is None where `added`."""
    why: str
    added: bool = False
    """The name only exists with Transformer Engine: it is added where it is absent or None, else left alone."""

    def install(self) -> None:
        """Replace the name.

        Raises:
            SeamGoneError: the owner or the name is gone.
        """
        owner = _find(self.owner)
        if self.added:
            if getattr(owner, self.name, None) is None:
                setattr(owner, self.name, self.replacement(None))
            return
        if not hasattr(owner, self.name):
            raise SeamGoneError(self._gone())
        setattr(owner, self.name, self.replacement(getattr(owner, self.name)))

    def _gone(self) -> str:
        return (
            f"{self.owner}.{self.name} does not exist here, so trainer=mcore_cpu cannot stand in for it ({self.why}); "
            f"this release was checked with Megatron Core {' and '.join(CHECKED)}"
        )


@functools.cache
def install_for_torch() -> None:
    """Stand in for CUDA within torch, once. Call it before Megatron Core is first imported, in a process of its own."""
    for stand_in in TORCH:
        stand_in.install()


@functools.cache
def install_for_megatron() -> None:
    """Stand in for what Megatron Core itself lacks on the CPU, once. Call it after Megatron Core is imported.

    Raises:
        SeamGoneError: the installed Megatron Core has another shape than those that were checked.
    """
    for stand_in in MEGATRON:
        stand_in.install()


def _find(path: str) -> Any:
    module, _, attribute = path.partition(":")
    try:
        owner: Any = sys.modules.get(module) or importlib.import_module(module)
        for part in attribute.split(".") if attribute else ():
            owner = getattr(owner, part)
    except (ImportError, AttributeError) as error:
        raise SeamGoneError(
            f"{path} does not exist here, so trainer=mcore_cpu cannot work with it; this release was checked with "
            f"Megatron Core {' and '.join(CHECKED)}"
        ) from error
    return owner


def _value(value: Any) -> Callable[[Any], Any]:
    return lambda original: value


class _Stream:
    """A CUDA stream or event where everything has already happened."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        pass

    def __enter__(self) -> _Stream:
        return self

    def __exit__(self, *args: Any) -> None:
        pass

    def __getattr__(self, name: str) -> Callable[..., _Stream]:
        return _Stream


class _Generators:
    """`torch.cuda.default_generators` of any length: the CPU's generator is that of the device."""

    def __getitem__(self, index: Any) -> torch.Generator:
        return torch.default_generator


def _a_class(original: Any) -> Any:
    return original if isinstance(original, type) else type("TELinear", (), {})


def _nothing(*args: Any, **kwargs: Any) -> None:
    pass


def _eager(function: Any = None, **options: Any) -> Any:
    """`torch.compile` that compiles nothing, as a decorator with and without options."""
    return function if function is not None else _eager


def _on_cpu(factory: Any) -> Any:
    """A tensor factory that takes a CUDA device for the CPU."""

    @functools.wraps(factory)
    def make(*args: Any, **kwargs: Any) -> Any:
        device = kwargs.get("device")
        if device is not None and str(device).startswith("cuda"):
            kwargs["device"] = _CPU
        return factory(*args, **kwargs)

    return make


def _itself(original: Any) -> Any:
    def same(this: Any, *args: Any, **kwargs: Any) -> Any:
        return this

    return same


def _cuda_type_name(original: Any) -> Any:
    def kind(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        result = original(tensor, *args, **kwargs)
        if isinstance(result, str) and not result.startswith("torch.cuda."):
            return result.replace("torch.", "torch.cuda.", 1)
        return result

    return kind


def _undecorated(original: Any) -> Any:
    return getattr(original, "__wrapped__", original)


def _without_grad(original: Any) -> Any:
    return torch.no_grad()(_undecorated(original))


def _get_rng_state(*args: Any, **kwargs: Any) -> torch.Tensor:
    return torch.get_rng_state()


def _set_rng_state(state: torch.Tensor, *args: Any, **kwargs: Any) -> None:
    torch.set_rng_state(state)


def _seed(seed: int) -> None:
    torch.manual_seed(seed)


def _call(function: Callable[[], None], **kwargs: Any) -> None:
    function()


def _to_host(tensor: Any, as_numpy: bool = False, record_stream: bool = False) -> Any:
    """Megatron Core's function of this name, for a tensor that already is on the host."""
    return tensor.numpy() if as_numpy and isinstance(tensor, torch.Tensor) else tensor


class _NoFp8:
    """What is asked of Transformer Engine's FP8 state around a checkpoint: FP8 is off."""

    @staticmethod
    def is_fp8_enabled() -> bool:
        return False


@contextlib.contextmanager
def _no_context(*args: Any, **kwargs: Any) -> Iterator[None]:
    yield


_NO_DEVICE = "there is no CUDA device to ask"
_NO_STREAM = "work on the CPU is done when a call returns, so there is no stream to wait for"
_ONE_GENERATOR = "the CPU's random generator is the only one"
_NAMES_CUDA = "Megatron Core names the device 'cuda' literally"
_NO_COMPILER = "its decorator imports torch._dynamo, a second of each start, to keep out a compiler that is not used"
_ONLY_WITH_TE = "the name exists only with Transformer Engine, and is used without asking"

TORCH = (
    StandIn("torch", "compile", _value(_eager), "jit_fuser compiles element-wise functions; eagerly they are the same"),
    StandIn("torch.cuda", "current_device", _value(lambda: _CPU), _NO_DEVICE),
    StandIn("torch.cuda", "get_rng_state", _value(_get_rng_state), _ONE_GENERATOR),
    StandIn("torch.cuda", "set_rng_state", _value(_set_rng_state), _ONE_GENERATOR),
    StandIn("torch.cuda.random", "get_rng_state", _value(_get_rng_state), _ONE_GENERATOR),
    StandIn("torch.cuda.random", "set_rng_state", _value(_set_rng_state), _ONE_GENERATOR),
    StandIn("torch.cuda", "default_generators", _value(_Generators()), _ONE_GENERATOR),
    StandIn("torch.cuda", "manual_seed", _value(_seed), _ONE_GENERATOR),
    StandIn("torch.cuda", "_lazy_call", _value(_call), "it defers the generator's state until CUDA starts"),
    StandIn("torch.cuda", "synchronize", _value(_nothing), _NO_STREAM),
    StandIn("torch.cuda", "empty_cache", _value(_nothing), "there is no allocator cache"),
    StandIn("torch.cuda", "Stream", _value(_Stream), _NO_STREAM),
    StandIn("torch.cuda", "Event", _value(_Stream), _NO_STREAM),
    StandIn("torch.cuda", "stream", _value(_Stream), _NO_STREAM),
    StandIn("torch.cuda", "current_stream", _value(_Stream), _NO_STREAM),
    StandIn("torch.cuda", "default_stream", _value(_Stream), _NO_STREAM),
    *(
        StandIn("torch", factory, _on_cpu, _NAMES_CUDA)
        for factory in (
            "arange",
            "empty",
            "empty_like",
            "full",
            "ones",
            "ones_like",
            "rand",
            "randn",
            "tensor",
            "zeros",
            "zeros_like",
        )
    ),
    *(
        StandIn("torch.optim:Optimizer", method, _undecorated, _NO_COMPILER)
        for method in ("add_param_group", "load_state_dict", "state_dict", "zero_grad")
    ),
    StandIn("torch.optim:AdamW", "step", _without_grad, _NO_COMPILER),
    StandIn("torch:Tensor", "cuda", _itself, _NAMES_CUDA),
    StandIn("torch.nn:Module", "cuda", _itself, _NAMES_CUDA),
    StandIn("torch:Tensor", "type", _cuda_type_name, "the optimizer compares a parameter's type with CUDA's names"),
)

MEGATRON = (
    StandIn(
        "megatron.core.transformer.multi_latent_attention",
        "TELinear",
        _a_class,
        "it is no class without Transformer Engine, and layers are asked whether they are one",
    ),
    StandIn(
        "megatron.core.transformer.moe.moe_utils",
        "maybe_move_tensor_to_cpu",
        _value(_to_host),
        "it converts to numpy only what comes from CUDA",
    ),
    StandIn(
        "megatron.core.transformer.moe.token_dispatcher",
        "maybe_move_tensor_to_cpu",
        _value(_to_host),
        "it converts to numpy only what comes from CUDA",
    ),
    StandIn("megatron.core.transformer.moe.moe_utils", "te_general_gemm", _value(None), _ONLY_WITH_TE, added=True),
    StandIn("megatron.core.tensor_parallel.random", "FP8GlobalStateManager", _value(_NoFp8), _ONLY_WITH_TE, added=True),
    StandIn(
        "megatron.core.tensor_parallel.random",
        "activation_recompute_forward",
        _value(_no_context),
        _ONLY_WITH_TE,
        added=True,
    ),
    StandIn("megatron.core.tensor_parallel.random", "fp8_autocast", _value(_no_context), _ONLY_WITH_TE, added=True),
)
