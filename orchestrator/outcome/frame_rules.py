"""Frames of a traceback that say where it was raised.

Names of files and functions are those of Megatron Core 0.6 to 0.20, Megatron Bridge, torch, Transformer Engine,
DeepSpeed and Lightning; lines drift, names rarely do.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache

from orchestrator.vocabulary import Stage


@dataclass(frozen=True)
class SourceFrame:
    """One frame, outermost first in a traceback. `code` is the line of source below it, where it was printed."""

    file: str
    function: str
    code: str = ""
    line: int | None = None
    """Of the log that the frame was read from."""


@dataclass(frozen=True)
class FrameRule:
    """Frames that say where. A part of a rule that is empty accepts anything."""

    id: str
    stage: Stage
    example: SourceFrame
    """A real one."""
    function: str = ""
    """Matches the whole name."""
    file: str = ""
    """Is found in the path."""
    code: str = ""
    """Is found in the line of source."""

    def matches(self, frame: SourceFrame) -> bool:
        return (
            (not self.function or _compiled(self.function).fullmatch(frame.function) is not None)
            and (not self.file or _compiled(self.file).search(frame.file) is not None)
            and (not self.code or _compiled(self.code).search(frame.code) is not None)
        )


@cache
def _compiled(pattern: str) -> re.Pattern[str]:
    return re.compile(pattern)


OUTRANKS_ALL = (
    FrameRule(
        "frame.graph-capture",
        Stage.GRAPH_CAPTURE,
        SourceFrame("megatron/core/transformer/cuda_graphs.py", "create_cudagraphs"),
        r"_?create_cuda_?graphs?|_?make_graphed_callables|create_(?:fwd|bwd)_graph|capture_(?:begin|end|graph|model)|"
        r"_?capture_\w*graph\w*|\w*graph_capture|init_\w*cuda_?graphs?|record_graph\w*",
    ),
    FrameRule(
        "frame.torch-graph",
        Stage.GRAPH_CAPTURE,
        SourceFrame("torch/cuda/graphs.py", "__exit__"),
        function=r"(?!replay$).+",
        file=r"torch/cuda/graphs\.py$|inductor/cudagraph_trees\.py$",
    ),
)
"""Capture runs whole forwards and backwards: what is inside it does not matter."""

CONTAINERS = (
    FrameRule(
        "frame.checkpoint-save",
        Stage.CHECKPOINT_SAVE,
        SourceFrame("megatron/training/training.py", "save_checkpoint_and_time"),
        r"_?save_(?:checkpoint|model|state|pretrained|hf|optimizer|to_state|16bit|fp16)\w*|_?save_\w*checkpoints?\w*|"
        r"checkpoint_and_decide_exit|maybe_finalize_async_save|finalize_async_saves?|async_save|"
        r"\w*consolidate\w*state_dict|"
        r"\w*consolidated\w*state_dict|_\w+_post_state_dict_hook|export_(?:ckpt|checkpoint|weights|model|hf)\w*|"
        r"sharded_param_state_\w+|(?:save|get)_parameter_state\w*",
    ),
    FrameRule(
        "frame.checkpoint-save-file",
        Stage.CHECKPOINT_SAVE,
        SourceFrame("megatron/core/dist_checkpointing/strategies/filesystem_async.py", "preload_tensors"),
        r"save|_save|_legacy_save|write_data|write_preloaded_data\w*|preload_tensors|_write_item|async_loop|"
        r"schedule_async_call|"
        r"_save_state_dict\w*|save_preprocess|prepare_write_data",
        r"serialization\.py$|dist_checkpointing/|distributed/checkpoint/|checkpoint_engine|state_dict_saver|"
        r"filesystem|saver\.py$",
    ),
    FrameRule(
        "frame.checkpoint-load",
        Stage.CHECKPOINT_LOAD,
        SourceFrame("megatron/bridge/training/checkpointing.py", "load_checkpoint"),
        r"_?load_(?:checkpoint|base_checkpoint|hf_weights|model_state|optimizer_state|state_dict|parameter_state|"
        r"adapter|module_state|zero_checkpoint)\w*|_?load_\w*checkpoints?\w*|load_weights\w*|sh_ten_merge_fn|"
        r"load_modelopt_\w+|restore_(?:from|checkpoint|weights|training_state)\w*|resume_from_checkpoint|"
        r"_load_state_dict\w*",
    ),
    FrameRule(
        "frame.checkpoint-load-file",
        Stage.CHECKPOINT_LOAD,
        SourceFrame("megatron/core/dist_checkpointing/serialization.py", "load"),
        r"load|_load|_legacy_load|read_data|load_preprocess|load_common\w*|load_sharded\w*|load_tensors_metadata|"
        r"read_metadata",
        r"serialization\.py$|dist_checkpointing/|distributed/checkpoint/|checkpoint_engine|state_dict_loader",
    ),
    FrameRule(
        "frame.evaluate",
        Stage.EVALUATE,
        SourceFrame("megatron/bridge/training/eval.py", "evaluate"),
        r"(?!\w*(?:data|build|config|args|provider))\w*(?:evaluat|validation)\w*|run_(?:eval|valid)\w*|"
        r"eval_(?:step|epoch|loop|batch|iter|one)\w*|predict(?:ion)?_(?:step|loop)|validate_(?:epoch|one|step)\w*|"
        r"val(?:id)?_(?:epoch|step|one|loop)\w*|"
        r"test_step|(?!set_|is_)\w+_eval|on_validation\w*|_run_sanity_check|compute_eval_\w+",
    ),
    FrameRule(
        "frame.validate-of-trainer",
        Stage.EVALUATE,
        SourceFrame("nemo_rl/algorithms/grpo.py", "validate"),
        r"_?validate",
        r"train\w*\.py$|/algorithms/|/loops?/|engine\w*\.py$",
    ),
    FrameRule(
        "frame.checkpoint-callback",
        Stage.CHECKPOINT_SAVE,
        SourceFrame("lightning/pytorch/callbacks/model_checkpoint.py", "on_train_epoch_end"),
        file=r"callbacks/\w*checkpoint\w*\.py$",
    ),
    FrameRule(
        "frame.archive-writer",
        Stage.CHECKPOINT_SAVE,
        SourceFrame("<unknown>", "caffe2::serialize::PyTorchStreamWriter::writeRecord(...)"),
        r".*\bPyTorch(?:Stream|File)Writer\b.*",
    ),
    FrameRule(
        "frame.archive-reader",
        Stage.CHECKPOINT_LOAD,
        SourceFrame("<unknown>", "caffe2::serialize::PyTorchStreamReader::getRecord(...)"),
        r".*\bPyTorch(?:Stream|File)Reader\b.*",
    ),
    FrameRule(
        "frame.evaluation-loop",
        Stage.EVALUATE,
        SourceFrame("lightning/pytorch/loops/evaluation_loop.py", "run"),
        file=r"evaluation_loop\.py$",
    ),
    FrameRule(
        "frame.forward-only",
        Stage.EVALUATE,
        SourceFrame("loop.py", "run", "forward_backward_func(data, forward_only=True)"),
        code=r"\bforward_only ?= ?True",
    ),
)
"""Parts of a job that hold forwards or optimizer steps of their own: the innermost of these wins over those."""
