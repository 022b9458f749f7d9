"""What a trainer says when its numbers are no numbers."""

from __future__ import annotations

from orchestrator.outcome.rule import Rule, Weight
from orchestrator.vocabulary import Cause, Stage

NUMBERS_RULES = (
    Rule(
        "numbers.local-grad-norm",
        Cause.NON_FINITE,
        ("local grad norm",),
        r"(?i)found (?:nan|inf)\w* in local grad norm",
        "message='found NaN in local grad norm for bucket #0 in backward pass before data-parallel "
        "communication collective'",
        stage=Stage.GRAD_SYNC,
    ),
    Rule(
        "numbers.local-loss",
        Cause.NON_FINITE,
        ("local forward loss", "oss is ", "oss=", "oss became", "oss was"),
        r"(?i)(?:nan|inf)\w* in local forward loss|\bloss (?:is|became|was) (?:nan|inf|not finite|infinite)|"
        r"\bloss=(?:nan|inf)\b",
        "ValueError: Rank 3, node node01, device 3, iteration 12: Unexpected result nan "
        "(message='found NaN in local forward loss calculation')",
        stage=Stage.FORWARD,
    ),
    Rule(
        "numbers.gradient",
        Cause.NON_FINITE,
        ("rad norm", "radient", "rad_norm"),
        r"(?i)\bgrad(?:ient)?s?(?:[ _]norm)? (?:is|are|was|became|contains?) (?:nan|inf|not finite|non-finite)|"
        r"\b(?:nan|inf)s? (?:found |detected )?in (?:the )?(?:local )?grad|non-finite (?:norm|gradient)",
        "RuntimeError: The total norm of order 2.0 for gradients from `parameters` is non-finite gradient",
        stage=Stage.GRAD_SYNC,
    ),
    Rule(
        "numbers.detected",
        Cause.NON_FINITE,
        (
            *(
                "ound nan",
                "ound NaN",
                "ound inf",
                "ound Inf",
                "etected nan",
                "etected NaN",
                "etected inf",
                "etected a nan",
            ),
            *("ncountered nan", "ncountered NaN", "got nan", "NaN loss", "nan loss", "inf loss", "infinite loss"),
            *("oss is nan", "oss is NaN", "on-finite", "NaN value", "nan value", "NaNs", "nans "),
        ),
        r"(?i)\b(?:found|detected|encountered|got) (?:a )?(?:nan|inf)s?\b|"
        r"\b(?:nan|inf(?:inite)?|non-finite) (?:loss|values?)(?: was| were)? (?:detected|found|encountered)|"
        r"\bloss is nan\b",
        "RuntimeError: Detected NaN in the loss of step 12, stopping.",
    ),
    Rule(
        "numbers.unexpected-result",
        Cause.NON_FINITE,
        ("nexpected result",),
        r"[Uu]nexpected result (?:nan|inf|-inf)",
        "Unexpected result nan on rank 3 at iteration #3 invocation #2",
    ),
    Rule(
        "numbers.loss-scale",
        Cause.NON_FINITE,
        ("loss scale", "FloatingPointError"),
        r"(?i)minimum loss scale reached|loss scale already at minimum|FloatingPointError:.*(?:nan|inf)",
        "Exception: Current loss scale already at minimum - cannot decrease scale anymore. Exiting run.",
    ),
    Rule(
        "numbers.nan-iterations",
        Cause.NON_FINITE,
        ("nan iterations",),
        r"number of nan iterations: +[1-9]",
        " iteration  12/  20 | lm loss: NAN | number of skipped iterations:   1 | number of nan iterations:   1 |",
        weight=Weight.NUMBERS,
        stage=Stage.FORWARD,
    ),
    Rule(
        "numbers.loss-in-progress",
        Cause.NON_FINITE,
        (": nan", ": NaN", ": NAN", ": inf", ": INF", ": -inf", "oss=nan"),
        r"(?i)(?<![a-z])loss(?:_[a-z]+)*['\"]?(?: value)?[:=] *-?(?:nan|inf)\b",
        "{'loss': nan, 'grad_norm': nan, 'learning_rate': 1e-05, 'epoch': 0.1}",
        weight=Weight.NUMBERS,
        stage=Stage.FORWARD,
    ),
    Rule(
        "numbers.gradient-in-progress",
        Cause.NON_FINITE,
        ("rad norm: ", "rad_norm"),
        r"(?i)\bgrad[ _]norm['\"]?[:=] *-?(?:nan|inf)\b",
        " iteration  12/  20 | lm loss: 9.1E+00 | grad norm: nan | number of skipped iterations:   0 |",
        weight=Weight.NUMBERS,
    ),
    Rule(
        "numbers.backward-anomaly",
        Cause.NON_FINITE,
        ("returned nan values",),
        r"Function '\w+' returned nan values in its",
        "RuntimeError: Function 'MulBackward0' returned nan values in its 0th output.",
        stage=Stage.BACKWARD,
    ),
    Rule(
        "numbers.overflow-skipped",
        Cause.SKIPPED_STEPS,
        ("verflow", "OVERFLOW"),
        r"(?i:found overflow|gradient overflow|overflow!)[^\n]*\b[Ss]kip(?:ping|ped)? step",
        "[deepspeed] OVERFLOW! Rank 0 Skipping step. Attempted loss scale: 65536, reducing to 32768",
        weight=Weight.NUMBERS,
        stage=Stage.OPTIMIZER_STEP,
    ),
    Rule(
        "numbers.skipped-iterations",
        Cause.SKIPPED_STEPS,
        ("skipped iterations",),
        r"number of skipped iterations: +[1-9]",
        " iteration  12/  20 | lm loss: 9.1E+00 | number of skipped iterations:   1 | number of nan iterations: 0 |",
        weight=Weight.NUMBERS,
        stage=Stage.OPTIMIZER_STEP,
    ),
)
