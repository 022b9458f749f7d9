"""Writing a ledger: sizes on this rank, and one line for each tensor."""

from __future__ import annotations

from collections.abc import Iterable

from orchestrator.predict.job import Local, Numerics, Shapes
from orchestrator.predict.ledger import FULL, Moment, Tensor

STAT = 4
"""Bytes of a norm's or a softmax's statistic: always float32."""
BLOCK = 512
"""Bytes of the smallest block that torch's CUDA allocator hands out (kMinBlockSize)."""
INDEX = 8
"""Bytes of an index as torch makes it (int64)."""


class Page:
    """The tensors of one layer as they are written down."""

    def __init__(self, shapes: Shapes, local: Local, numerics: Numerics) -> None:
        self.shapes = shapes
        self.local = local
        self.numerics = numerics
        self.element = numerics.weight
        """Bytes of an activation: activations have the weights' format."""
        self.tensors: list[Tensor] = []
        self.moments: list[Moment] = []

    @property
    def norm_copies(self) -> bool:
        """Whether norms save a float32 copy of their input in place of the input, as torch's own does."""
        return not self.numerics.transformer_engine and self.shapes.rms_norm and self.element != STAT

    @property
    def stream(self) -> int:
        """Bytes of the residual stream on this rank: [t, h]."""
        return self.local.shard * self.shapes.hidden * self.element

    def linear_input(self, numbers: int, *, original: bool = False) -> int:
        """Bytes that a linear layer keeps of an input of so many numbers.

        FP8 keeps one quantised copy of the input, a byte a number, unless it was told to save the original
        (set_save_original_input): the column-wise one, which the weight's gradient is made from, or the row-wise one
        where sequence parallelism gathers it again (TE _Linear.forward, _LayerNormLinear.forward and
        _GroupedLinear.forward, update_usage).
        """
        if self.numerics.fp8 and not original:
            return self._quantised(numbers)
        return numbers * self.element

    def quantised_gradient(self, numbers: int) -> int:
        """Bytes of the copies that a linear layer's backward makes of its output's gradient: row-wise for the input's
        gradient and column-wise for the weight's (TE module/base.py grad_output_preprocess)."""
        return 2 * self._quantised(numbers) if self.numerics.fp8 else 0

    def _quantised(self, numbers: int) -> int:
        scales = {"mxfp8": 32, "blockwise": 32}.get(self.numerics.fp8_recipe or "", 0)
        return numbers + (numbers // scales if scales else 0)

    def quantise(
        self, name: str, shape: str, numbers: int, made: str, used: str, source: str, labels: Iterable[str] = ()
    ) -> None:
        """What a linear layer's forward holds of its input in FP8 beside the copy that it keeps: the input itself, of
        which it is no more than an argument, and the row-wise copy, which goes once it is multiplied."""
        if not self.numerics.fp8:
            return
        if made != used:
            self.hold(f"{name}, not quantised", shape, numbers * self.element, made, used, source, labels)
        self.hold(f"{name}, row-wise", shape, self._quantised(numbers), used, used, source, labels)

    def weight_gradient(self, numbers: int) -> int:
        """Bytes of a weight's gradient while it is made; none where it is added to the buffer in place."""
        return 0 if self.numerics.wgrad_fused else numbers * self.numerics.weight

    def keep(
        self,
        name: str,
        shape: str,
        size: int,
        made: str,
        until: str,
        source: str,
        labels: Iterable[str] = (),
    ) -> None:
        """A tensor that backward reads."""
        self._write(name, shape, size, made, until, source, True, labels, ())

    def torch_norm(self, name: str, numbers: int, made: str, labels: Iterable[str] = ()) -> None:
        """What torch's own RMSNorm keeps beyond its input: it is composed of operations that compute in float32."""
        if self.numerics.transformer_engine or not self.shapes.rms_norm:
            return
        source = "torch.nn.functional.rms_norm"
        self.keep(f"{name} in float32, scaled", "[t, h]", numbers * STAT, made, made, source, labels)
        if self.element != STAT:
            self.keep(f"{name} in float32", "[t, h]", numbers * STAT, made, made, source, labels)

    def hold(
        self, name: str, shape: str, size: int, made: str, until: str, source: str, labels: Iterable[str] = ()
    ) -> None:
        """A temporary."""
        self._write(name, shape, size, made, until, source, False, labels, ())

    def keep_instead(
        self,
        name: str,
        shape: str,
        size: int,
        made: str,
        until: str,
        source: str,
        instead: Iterable[str],
        labels: Iterable[str] = (),
    ) -> None:
        """A tensor that is a temporary, unless one of the labels `instead` keeps it as a boundary's input."""
        self._write(name, shape, size, made, until, source, False, labels, instead)

    def layer_input(
        self, made: str, last: str, source: str, instead: Iterable[str] = (), name: str = "layer input"
    ) -> None:
        """The layer's own input: kept by its first norm, and by a checkpoint of the whole layer or (`instead`) of the
        norm, where the norm does not save it."""
        kept = not self.norm_copies
        boundary = frozenset() if kept else frozenset({*instead, FULL})
        self.tensors.append(Tensor(name, "[t, h]", self.stream, made, last, source, kept, frozenset(), boundary))

    def keep_always(self, name: str, shape: str, size: int, made: str, source: str) -> None:
        """A tensor that backward reads, made outside of what full recompute checkpoints."""
        self.tensors.append(Tensor(name, shape, size, made, made, source, True))

    def norm_input(self, name: str, made: str, last: str, source: str, instead: Iterable[str] = ()) -> None:
        """What goes into a norm inside a layer, of the residual stream's size; `instead` keep it as their input."""
        if self.norm_copies:
            self.keep_instead(name, "[t, h]", self.stream, made, last, source, instead)
        else:
            self.keep(name, "[t, h]", self.stream, made, last, source)

    def moment(
        self, name: str, made: int, freed: int, region: Iterable[str] = (), *, copied: int = 0, mixer: bool = False
    ) -> None:
        """A point of the backward."""
        self.moments.append(Moment(name, made, freed, frozenset({*region, FULL}), copied, mixer))

    def ready(self, name: str, made: int, weight: int, freed: int, region: Iterable[str] = ()) -> None:
        """The point behind a linear layer's backward where the hook of a weight of so many numbers has its gradient,
        and adds it to the buffer (DistributedDataParallel._make_backward_post_hook). `made` is the input's gradient.

        Autograd runs the hooks of several weights one after the other, and each gradient goes with its hook.
        """
        height = made + self.weight_gradient(weight)
        self.moments.append(Moment(name, height, freed, frozenset({*region, FULL}), ready=True))

    @property
    def scattered(self) -> int:
        """Bytes that a linear layer's backward makes beside its input's gradient: its part, reduced over ranks."""
        return self.stream if self.local.sequence_parallel and self.local.tp > 1 else 0

    def _write(
        self,
        name: str,
        shape: str,
        size: int,
        made: str,
        until: str,
        source: str,
        kept: bool,
        labels: Iterable[str],
        instead: Iterable[str],
    ) -> None:
        dropped = frozenset({*labels, FULL})
        if size:
            self.tensors.append(Tensor(name, shape, size, made, until, source, kept, dropped, frozenset(instead)))
