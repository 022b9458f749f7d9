"""Makes tests/data/our_failures.jsonl: logs for pairs of stage and cause that no public report shows.

    python tests/make_our_failures.py

Each case trains Megatron Core on this CPU for an iteration, with one rank, and lets an allocation inside a named
function of the framework fail. The text is what the rank printed, without frames of our own, which a GPU's traceback
does not have either.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import io
import json
import os
import re
import sys
import tempfile
import traceback
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from orchestrator.config.compose import compose
from orchestrator.records.beacon import BeaconWriter
from orchestrator.records.spec import TrialSpec
from orchestrator.trial.mcore_cpu import trainer
from orchestrator.trial.mcore_cpu.memory import TrackedMemory
from orchestrator.trial.recorder import Recorder
from orchestrator.vocabulary import Stage

OUTPUT = Path(__file__).parent / "data" / "our_failures.jsonl"
CORE = "megatron.core"
_MOE = ("model=tiny_moe", "parallelism=single")
_MLA = ("model=tiny_mla_moe", "parallelism=single")


@dataclass(frozen=True)
class Making:
    """A case to make: where an allocation fails, counted from 1 from the entry of a function; 0 is the entry itself."""

    id: str
    what: str
    function: str
    """`module:name` or `module:Class.name`."""
    allocation: int
    stage: Stage
    overrides: tuple[str, ...] = _MLA
    entry: int = 1
    evaluates: bool = False


MAKINGS = (
    Making(
        "M01",
        "gradient buffers",
        f"{CORE}.distributed.param_and_grad_buffer:_ParamAndGradBuffer.__init__",
        1,
        Stage.MODEL_BUILD,
    ),
    Making(
        "M02",
        "weights of a layer",
        f"{CORE}.transformer.attention:Attention.__init__",
        1,
        Stage.MODEL_BUILD,
        ("model=tiny_dense", "parallelism=single"),
    ),
    Making(
        "M03",
        "main-parameter clone",
        f"{CORE}.optimizer.distrib_optimizer:DistributedOptimizer._build_model_and_main_param_groups",
        1,
        Stage.OPTIMIZER_BUILD,
        (*_MLA, "precision=bf16"),
    ),
    Making(
        "M04",
        "attention in forward",
        f"{CORE}.transformer.multi_latent_attention:MultiLatentAttention.forward",
        3,
        Stage.FORWARD,
    ),
    Making("M05", "router", f"{CORE}.transformer.moe.router:TopKRouter.forward", 1, Stage.FORWARD, _MOE),
    Making(
        "M06",
        "dispatcher",
        f"{CORE}.transformer.moe.token_dispatcher:MoEAlltoAllTokenDispatcher.dispatch_preprocess",
        1,
        Stage.FORWARD,
        _MOE,
    ),
    Making("M07", "experts", f"{CORE}.transformer.moe.experts:SequentialMLP.forward", 1, Stage.FORWARD, _MOE),
    Making(
        "M08",
        "loss",
        f"{CORE}.models.common.language_module.language_module:LanguageModule.compute_language_model_loss",
        1,
        Stage.FORWARD,
    ),
    Making("M09", "plain backward", f"{CORE}.pipeline_parallel.schedules:custom_backward", 9, Stage.BACKWARD),
    Making(
        "M10",
        "replay of a whole layer",
        f"{CORE}.tensor_parallel.random:CheckpointFunction.backward",
        6,
        Stage.REPLAY,
        (*_MLA, "recompute=full_uniform"),
    ),
    Making(
        "M11",
        "replay of an output that was discarded",
        f"{CORE}.tensor_parallel.random:CheckpointWithoutOutput._recompute",
        2,
        Stage.REPLAY,
        (*_MLA, "recompute_modules=[mla_up_proj]"),
    ),
    Making(
        "M12",
        "checkpoint frames in forward",
        f"{CORE}.tensor_parallel.random:CheckpointFunction.forward",
        6,
        Stage.FORWARD,
        (*_MLA, "recompute=full_uniform"),
    ),
    Making(
        "M13",
        "gradients into their buffer",
        f"{CORE}.distributed.param_and_grad_buffer:_ParamAndGradBucketGroup.start_grad_sync",
        0,
        Stage.GRAD_SYNC,
    ),
    Making(
        "M14",
        "gradients between replicas of embeddings",
        f"{CORE}.distributed.param_and_grad_buffer:_ParamAndGradBucketGroup.finish_grad_sync",
        0,
        Stage.GRAD_SYNC,
    ),
    Making("M15", "first optimizer state", "torch.optim.adamw:AdamW._init_group", 2, Stage.OPTIMIZER_INIT),
    Making("M16", "gradient norm", f"{CORE}.optimizer.optimizer:get_grad_norm_fp32", 1, Stage.OPTIMIZER_STEP),
    Making(
        "M17", "gradient clipping", f"{CORE}.optimizer.optimizer:clip_grad_by_total_norm_fp32", 0, Stage.OPTIMIZER_STEP
    ),
    Making("M18", "update of parameters", "torch.optim.adam:_single_tensor_adam", 3, Stage.OPTIMIZER_STEP),
    Making(
        "M19",
        "all-gather of parameters",
        f"{CORE}.distributed.param_and_grad_buffer:_ParamAndGradBucketGroup.start_param_sync",
        0,
        Stage.OPTIMIZER_STEP,
    ),
    Making(
        "M20",
        "evaluation",
        f"{CORE}.transformer.transformer_layer:TransformerLayer.forward",
        2,
        Stage.EVALUATE,
        entry=1,
        evaluates=True,
    ),
    Making(
        "M21", "dispatcher in backward", f"{CORE}.tensor_parallel.mappings:_AllToAll.backward", 0, Stage.BACKWARD, _MOE
    ),
)


def main() -> None:
    for module in ("megatron.core.optimizer", "megatron.core.models.gpt.gpt_model", "megatron.core.pipeline_parallel"):
        importlib.import_module(module)  # once, before the forks
    wanted = sys.argv[1:]
    lines = [json.dumps(made(making), ensure_ascii=False) for making in MAKINGS if not wanted or making.id in wanted]
    if wanted:
        print("\n".join(json.loads(line)["text"] for line in lines))
        return
    OUTPUT.write_text("\n".join(lines) + "\n", encoding="utf-8")


def made(making: Making) -> dict[str, Any]:
    """One case, made in a process of its own: Megatron Core keeps its state in modules."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        with os.fdopen(writing, "w", encoding="utf-8") as stream:
            stream.write(text_of(making))
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading, encoding="utf-8") as stream:
        text = stream.read()
    os.waitpid(child, 0)
    if "OutOfMemoryError" not in text:
        raise SystemExit(f"{making.id} {making.what}: no allocation failed:\n{text[-3000:]}")
    print(making.id, making.what, len(text), file=sys.stderr, flush=True)
    return {
        "id": making.id,
        "origin": "ours",
        "source": "Megatron Core on a CPU, an allocation made to fail",
        "what": making.what,
        "stage": making.stage.value,
        "cause": "device_oom",
        "decidable": {"cause": True, "stage": True},
        "text": text,
    }


def text_of(making: Making) -> str:
    """What the rank prints."""
    printed = io.StringIO()
    with (
        tempfile.TemporaryDirectory() as folder,
        contextlib.redirect_stdout(printed),
        contextlib.redirect_stderr(printed),
    ):
        try:
            _train(making, Path(folder))
        except torch.OutOfMemoryError:
            traceback.print_exc()
        except Exception:  # noqa: BLE001 - shown by `made`, which ends here
            printed.write("something else failed\n" + traceback.format_exc())
    return _anonymous("".join(line for line in printed.getvalue().splitlines(True) if "RNG state" not in line))


def _train(making: Making, folder: Path) -> None:
    request = compose(
        ["training.train_iters=2", "training.steady_window=[1,2]", "recompute=control", *making.overrides]
    )
    keys = (
        "recompute_granularity",
        "recompute_modules",
        "recompute_method",
        "recompute_num_layers",
        "model",
        "parallelism",
    )
    config = {key: request[key] for key in (*keys, "precision", "training", "trainer", "revisions")}
    spec = TrialSpec("made", "001", "mcore_cpu", 1, config, str(folder), str(folder), (1, 2), 2)
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(20000 + os.getpid() % 20000)}
    beacon = BeaconWriter(folder / "beacon", 2)
    built = trainer._Trial.__init__
    trials: list[Any] = []

    def remember(trial: Any, *arguments: Any) -> None:
        built(trial, *arguments)
        trials.append(trial)
        _fail_inside(making, trial)

    trainer._Trial.__init__ = remember
    recorder = Recorder(beacon, folder / "facts.json", TrackedMemory(), (1, 2))
    trainer.run(spec, recorder, 0, 1, 0)


def _fail_inside(making: Making, trial: Any) -> None:
    """Let the allocation fail from the given entry of the function on; where the case evaluates, in evaluation."""
    start = trial._start

    def started() -> None:
        start()
        module, _, path = making.function.partition(":")
        owner = importlib.import_module(module)
        *parents, name = path.split(".")
        for parent in parents:
            owner = getattr(owner, parent)
        raw = owner.__dict__[name]
        kind = type(raw) if isinstance(raw, (staticmethod, classmethod)) else lambda function: function
        function = getattr(raw, "__func__", raw)
        entries = 0

        @functools.wraps(function)
        def failing(*arguments: Any, **named: Any) -> Any:
            nonlocal entries
            if not making.evaluates or trial.evaluating:
                entries += 1
                if entries == making.entry:
                    if not making.allocation:
                        raise trial.memory.refuse(24 * 2**20)
                    trial.memory.fail_allocation(making.allocation)
            return function(*arguments, **named)

        setattr(owner, name, kind(failing))

    trial.evaluating = False
    trial._start = started
    if making.evaluates:
        train = trial._train

        def train_and_evaluate() -> None:
            train()
            trial.evaluating = True
            evaluate(trial)

        trial._train = train_and_evaluate


def evaluate(trial: Any) -> None:
    """A forward-only pass, as evaluation in Megatron's and Bridge's training loops is."""
    from megatron.core.pipeline_parallel import get_forward_backward_func

    training = trial.request.training
    with torch.no_grad():
        get_forward_backward_func()(
            forward_step_func=trial._forward,
            data_iterator=trial.batches[0],
            model=trial.chunks[0],
            num_microbatches=1,
            seq_length=training.seq_length,
            micro_batch_size=training.micro_batch_size,
            forward_only=True,
        )


def _anonymous(text: str) -> str:
    places = [
        (str(Path(__file__).parents[1]), "/opt/orchestrator"),
        (str(Path(torch.__file__).parents[1]), "/opt/venv/lib/site-packages"),
    ]
    for place, name in places:
        text = text.replace(place, name)
    ours = re.compile(r'  File "/opt/orchestrator/[^"]*", line \d+, in (?!evaluate\b).*\n(?:    .*\n)*')
    return re.sub(r"Process \d+ has", "Process 4242 has", ours.sub("", text))


if __name__ == "__main__":
    main()
