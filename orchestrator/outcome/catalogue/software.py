"""Software that is absent, does not fit, or was asked for what it cannot do; and input that cannot be read."""

from __future__ import annotations

from orchestrator.outcome.rule import Rule
from orchestrator.vocabulary import Cause, Stage

SOFTWARE_RULES = (
    Rule(
        "software.import",
        Cause.IMPORT_ERROR,
        (
            "ModuleNotFoundError",
            "ImportError",
            "undefined symbol",
            "cannot open shared object",
            "PackageNotFoundError",
            "VersionConflict",
            "DistributionNotFound",
            "GLIBC",
            "Error building extension",
            "has no attribute",
            "partially initialized module",
        ),
        r"(?:^|[\s(.])(?:ModuleNotFoundError|ImportError|PackageNotFoundError|VersionConflict|"
        r"DistributionNotFound)\b|"
        r"undefined symbol: |cannot open shared object file|version `GLIBC(?:XX)?_[\d.]+' not found|"
        r"Error building extension|AttributeError: (?:partially initialized )?module '.*' has no attribute",
        "ModuleNotFoundError: No module named 'transformer_engine'",
        stage=Stage.STARTUP,
    ),
    Rule(
        "software.arguments",
        Cause.INVALID_CONFIG,
        (
            "error: unrecognized arguments",
            "error: argument",
            "error: the following arguments",
            "error: ambiguous option",
        ),
        r"error: (?:unrecognized arguments|argument |the following arguments are required|ambiguous option)",
        "pretrain_gpt.py: error: unrecognized arguments: --recompute-module core_attn",
        stage=Stage.VALIDATE,
    ),
    Rule(
        "software.configuration",
        Cause.INVALID_CONFIG,
        (
            "hydra.errors",
            "omegaconf.errors",
            "ConfigCompositionException",
            "ConfigAttributeError",
            "ValidationError",
            "ConfigKeyError",
            "OverrideParseException",
            "MissingConfigException",
            "ConfigTypeError",
            "MissingMandatoryValue",
        ),
        r"(?:hydra|omegaconf)\.errors\.|ConfigCompositionException|Config(?:Attribute|Key|Type)Error|"
        r"pydantic.*ValidationError|OverrideParseException|MissingMandatoryValue|MissingConfigException",
        "omegaconf.errors.ConfigAttributeError: Key 'recompute_module' is not in struct",
        stage=Stage.VALIDATE,
    ),
    Rule(
        "software.divisible",
        Cause.INVALID_CONFIG,
        ("divisible", "must divide", "should divide"),
        r"(?:Assertion|Value|Runtime)Error\b.*\b(?:(?:should|must) be (?:evenly )?divisible|"
        r"(?:is )?not (?:evenly )?divisible by|"
        r"(?:must|should) divide)",
        "AssertionError: num_layers should be divisible by pipeline_model_parallel_size",
    ),
    Rule(
        "software.unsupported-combination",
        Cause.INVALID_CONFIG,
        ("ssertionError: ", "alueError: ", "mplementedError: ", "No dot product attention backend"),
        r"(?:Assertion|Value|NotImplemented)Error: .*(?:\brecompute_\w+|\brecompute (?:granularity|method)|"
        r"(?:not|only) (?:be )?(?:supported|compatible)|\w+_parallel_size\b|\bcuda_graph_\w+)|"
        r"No dot product attention backend is available",
        "AssertionError: Full recompute is only supported with full iteration CUDA graph.",
    ),
    Rule(
        "software.trainer-refused",
        Cause.INVALID_CONFIG,
        ("RejectedError: ",),
        r"\bmcore_cpu\.request\.RejectedError: ",
        "orchestrator.trial.mcore_cpu.request.RejectedError: parallelism.cp=2 needs Transformer Engine",
    ),
    Rule(
        "software.pinned-revision",
        Cause.REVISION_MISMATCH,
        ("RevisionMismatchError: ",),
        r"\bRevisionMismatchError: ",
        "orchestrator.trial.revisions.RevisionMismatchError: revisions.bridge is 1a2b, but megatron.bridge is at 3c4d",
        stage=Stage.VALIDATE,
    ),
    Rule(
        "software.seam-gone",
        Cause.REVISION_MISMATCH,
        ("SeamGoneError: ", "MissingSeamError: "),
        r"\b(?:SeamGone|MissingSeam)Error: ",
        "orchestrator.trial.mcore_cpu.standins.SeamGoneError: torch.cuda.current_device does not exist here",
    ),
    Rule(
        "software.unknown-setting",
        Cause.INVALID_CONFIG,
        ("unexpected keyword argument",),
        r"TypeError: (?:\w*(?:Config|Provider|Args|Arguments)\w*\.)?__init__\(\) got an unexpected keyword argument",
        "TypeError: TransformerConfig.__init__() got an unexpected keyword argument 'recompute_module'",
        stage=Stage.VALIDATE,
    ),
    Rule(
        "software.state-does-not-fit",
        Cause.INVALID_CONFIG,
        ("loading state_dict", "shape mismatch", "key(s) in state_dict", "size mismatch for"),
        r"Error\(s\) in loading state_dict|Global shape mismatch|(?:Missing|Unexpected) key\(s\) in state_dict|"
        r"size mismatch for ",
        "RuntimeError: Error(s) in loading state_dict for GPTModel:",
        stage=Stage.CHECKPOINT_LOAD,
    ),
    Rule(
        "software.checkpoint-unreadable",
        Cause.DATA,
        ("StreamReader failed", "CheckpointingException", "not a distributed checkpoint", "CheckpointException"),
        r"StreamReader failed|CheckpointingException: .*(?:not a distributed checkpoint|does not exist|"
        r"[Cc]annot find|metadata)|"
        r"not a distributed checkpoint",
        "RuntimeError: PytorchStreamReader failed reading zip archive: failed finding central directory",
        stage=Stage.CHECKPOINT_LOAD,
    ),
    Rule(
        "software.dataset",
        Cause.DATA,
        (
            ".idx",
            "DatasetNotFoundError",
            "DataFilesNotFoundError",
            "DatasetGenerationError",
            "RepositoryNotFoundError",
            "LocalEntryNotFoundError",
            "GatedRepoError",
            "OfflineModeIsEnabled",
            "HFValidationError",
            "JSONDecodeError",
            "EntryNotFoundError",
            "is not a local folder",
            "couldn't connect to",
        ),
        r"Error\b.*\.(?:idx|bin)\b|\.idx and \.bin files cannot be found|DatasetNotFoundError|DataFilesNotFoundError|"
        r"DatasetGenerationError|RepositoryNotFoundError|EntryNotFoundError|GatedRepoError|OfflineModeIsEnabled|"
        r"We couldn't connect to|HFValidationError|JSONDecodeError|"
        r"is not a local folder and is not a valid model identifier",
        "FileNotFoundError: [Errno 2] No such file or directory: '/data/pile_text_document.idx'",
        stage=Stage.DATA_BUILD,
    ),
    Rule(
        "software.file-absent",
        Cause.DATA,
        ("FileNotFoundError",),
        r"(?:^|[\s.])FileNotFoundError\b",
        "FileNotFoundError: [Errno 2] No such file or directory: '/data/tokenizer.model'",
    ),
)
