"""Software that is absent, does not fit, or was asked for what it cannot do; and input that cannot be read."""

from __future__ import annotations

from orchestrator.outcome.rule import Rule, Weight
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
            "No module named",
            "cannot import name",
            "symbol lookup error",
            "Failed to import",
        ),
        r"(?:^|[\s(.])(?:ModuleNotFoundError|ImportError|PackageNotFoundError|VersionConflict|"
        r"DistributionNotFound)\b|"
        r"No module named '?[\w.]+'?$|cannot import name '\w+'|symbol lookup error|Failed to import [\w.]+ because|"
        r"undefined symbol: |cannot open shared object file|version `GLIBC(?:XX)?_[\d.]+' not found|"
        r"Error building extension|AttributeError: (?:partially initialized )?module '.*' has no attribute",
        "ModuleNotFoundError: No module named 'transformer_engine'",
        stage=Stage.STARTUP,
    ),
    Rule(
        "software.version",
        Cause.IMPORT_ERROR,
        ("pgrade", "pdate", "owngrade", "newer", "NoCountersError: ", "not installed", "too old"),
        # Only the headline of an exception, and only for want of another cause: tools ask for updates all the time.
        r"^(?:\[rank ?\d+\]:\s*|\d+:\s*)?(?:[\w.]+\.)?[A-Z]\w*(?:Error|Exception): .*"
        r"(?:(?i:\bplease (?:upgrade|update|downgrade)\b)|\bupgrade [\w. -]+ to (?:>= ?|version )?v?\d+\.|"
        r"\b(?:is|are) not installed\b[.,;:]? *(?i:please|run|install|use)|"
        r"\bversion v?\d[\w.]* or newer\b|\bversion v?\d[\w.+]* is too old\b)|\bmeter\.NoCountersError: ",
        "RuntimeError: Triton >= 3.4.0 and < 3.7.1 on Hopper GPUs produces incorrect results. Please upgrade Triton to "
        ">= 3.7.1",
        weight=Weight.VAGUE,
    ),
    Rule(
        "software.arguments",
        Cause.INVALID_CONFIG,
        (
            "error: unrecognized arguments",
            "error: argument",
            "error: the following arguments",
            "error: ambiguous option",
            *("Could not override", "Key '", "Error merging '", "Error locating target", "Error instantiating"),
            *("Could not find '", "Could not load '", "Primary config"),
        ),
        r"error: (?:unrecognized arguments|argument |the following arguments are required|ambiguous option)|"
        r"^Could not (?:override|load) '|^Key '[\w.]+' (?:is not in struct|not in ')|"
        r"Error merging '[^']+' with schema|"
        r"Error (?:locating target|instantiating) '|Could not find '[\w/.]+/[\w/.]+'$|Primary config .* not found",
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
        "software.asserted-setting",
        Cause.INVALID_CONFIG,
        ("ssertionError: ", "alueError: "),
        r"(?:Assertion|Value)Error: (?i:.*(?:\b(?:tensor|pipeline|sequence|context|expert|data|model)[ _-]"
        r"(?:model[ _-])?parallel|\bparallelism\b|\brecomput|\bcuda[ _-]?graphs?\b|\bfp8\b|\b(?:micro|"
        r"global)[ _-]?batch|"
        r"\bnum[ _-]layers\b|\b(?:attention[ _-]heads?|query[ _-]groups)\b|\bvirtual[ _-]pipeline|"
        r"\bgrouped[ _-]?gemm\b|"
        r"\bdistributed optimizer\b|\bworld[ _-]size\b|\bmax[ _-]position[ _-]embeddings\b|\bmoe[ _-]experts\b|"
        r"\bnum[ _-]experts\b|\bwindow[ _-]size\b|\b(?:flash|fused)[ _-]?attention\b|\bself\.\w+|\bfp16\b.*\bbf16\b|"
        r"\bpipeline_dtype\b|\bshould be (?:enabled|disabled|set|used)\b|\bcannot be used\b|"
        r"\bmust be (?:set|specified|enabled|used)\b))",
        "AssertionError: When using MoE and tensor parallelism, sequence parallelism must be used.",
    ),
    Rule(
        "software.trainer-refused",
        Cause.INVALID_CONFIG,
        ("RejectedError: ", "RecipeError: ", "UnknownTrainerError: ", "MemoryLimitError: "),
        r"\borchestrator\.trial\.[\w.]+\.(?:Rejected|Recipe|UnknownTrainer|MemoryLimit)Error: ",
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
        ("loading state_dict", "shape mismatch", "shape metadata", "key(s) in state_dict", "size mismatch for"),
        r"Error\(s\) in loading state_dict|[Cc]annot find global shape metadata|Global shape mismatch|(?:Missing|"
        r"Unexpected) key\(s\) in state_dict|"
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
            *(".idx", ".bin", "DatasetNotFoundError", "DataFilesNotFoundError", "DatasetGenerationError"),
            *("ArrowInvalid", "last epoch num", "Dataset does not exist"),
        ),
        r"AssertionError: last epoch num|^Dataset does not exist: |"
        r"Error\b.*\.(?:idx|bin)\b|\.idx and \.bin files cannot be found|"
        r"DatasetNotFoundError|DataFilesNotFoundError|DatasetGenerationError|ArrowInvalid",
        "FileNotFoundError: [Errno 2] No such file or directory: '/data/pile_text_document.idx'",
        stage=Stage.DATA_BUILD,
    ),
    Rule(
        "software.input",
        Cause.DATA,
        (
            *("RepositoryNotFoundError", "EntryNotFoundError", "GatedRepoError", "OfflineModeIsEnabled"),
            *("HFValidationError", "JSONDecodeError", "is not a local folder", "couldn't connect to"),
            *("load tokenizer for", "backend tokenizer", "Unrecognized model in", "Incorrect path_or_model_id"),
            *("Repo id must", "UnpicklingError", "BadZipFile", "SafetensorError", "Ran out of input"),
            "parse ModelProto",
            "UnicodeDecodeError",
        ),
        r"RepositoryNotFoundError|EntryNotFoundError|GatedRepoError|OfflineModeIsEnabled|We couldn't connect to|"
        r"HFValidationError|JSONDecodeError|is not a local folder and is not a valid model identifier|"
        r"Can't load tokenizer for|instantiate the backend tokenizer|Unrecognized model in |"
        r"Incorrect path_or_model_id|Repo id must|UnpicklingError|BadZipFile|SafetensorError|"
        r"EOFError: Ran out of input|could not parse ModelProto|UnicodeDecodeError:",
        "OSError: Can't load tokenizer for '/models/llama'. If you were trying to load it from a hub, make sure ...",
    ),
    Rule(
        "software.file-absent",
        Cause.DATA,
        ("FileNotFoundError",),
        r"(?:^|[\s.])FileNotFoundError\b",
        "FileNotFoundError: [Errno 2] No such file or directory: '/data/tokenizer.model'",
    ),
)
