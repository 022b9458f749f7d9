"""The views that `query` documents: stable names over tables that may change, in SQL that both back ends read."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class View:
    """A documented view: its name, what one row is, and its SQL."""

    name: str
    row: str
    sql: str


_OF_STUDY = """x.trial_id = t.id AND x.label = 'pass' AND x.match_key = a.match_key AND (
            x.role NOT IN ('control-first', 'control-last') OR x.study_id = s.id OR x.batch_id IN (
                SELECT y.batch_id FROM attempts y JOIN study_trials sy ON sy.trial_id = y.trial_id
                WHERE sy.study_id = s.id AND y.role NOT IN ('control-first', 'control-last')))"""
"""The passing runs of a trial that a comparison of the study counts: not those that opened or closed others' jobs."""

_STEP_MS = f"""CASE WHEN NOT t.is_control OR a.label IS NULL OR a.label <> 'pass' THEN a.step_ms ELSE COALESCE((
        SELECT AVG(ordered.step_ms) FROM (
            SELECT x.step_ms AS step_ms, ROW_NUMBER() OVER (ORDER BY x.step_ms) AS place, COUNT(*) OVER () AS runs
            FROM attempts x WHERE x.step_ms IS NOT NULL AND {_OF_STUDY}) ordered
        WHERE ordered.place IN ((ordered.runs + 1) / 2, (ordered.runs + 2) / 2)), a.step_ms) END"""
"""The one definition that `compare` has too: the median of a control's passing runs in the study."""

_TRIALS = f"""
SELECT s.name AS study, st.name AS name, t.id AS trial, st.role AS role, t.repeat AS repeat, t.origin AS origin,
    CASE WHEN a.label IS NOT NULL THEN a.label WHEN st.status = 'rejected' THEN 'rejected' END AS label,
    CASE WHEN a.state = 'ended' AND a.label IS NULL THEN 'unfinished'
         WHEN a.state IS NOT NULL THEN a.state
         WHEN st.status = 'rejected' THEN 'rejected'
         WHEN EXISTS (SELECT 1 FROM batch_trials bt JOIN batches b ON b.id = bt.batch_id
                      WHERE bt.trial_id = t.id
                        AND (b.state IS NULL OR b.state IN ('submitting', 'submitted', 'running')))
         THEN 'pending' ELSE 'planned' END AS state,
    a.cause AS cause, a.stage AS stage, a.rank AS rank, a.iteration AS iteration,
    t.recompute_granularity AS granularity, t.recompute_modules AS modules, t.recompute_method AS method,
    t.recompute_num_layers AS num_layers, t.is_control AS is_control, t.trainer AS trainer,
    t.world_size AS world_size, a.device_kind AS device_kind, a.device_name AS device_name,
    a.peak_allocated AS peak_allocated, a.peak_allocated_rank AS peak_allocated_rank,
    a.peak_allocated_stage AS peak_allocated_stage, a.peak_reserved AS peak_reserved,
    {_STEP_MS} AS step_ms,
    a.step_ms_scatter AS step_ms_scatter, a.step_gc_ms AS step_gc_ms,
    a.tflops_per_gpu AS tflops_per_gpu, a.last_loss AS last_loss,
    a.batch_id AS batch, a.number AS attempt, a.match_key AS match_key, a.started_at AS started_at,
    a.ended_at AS ended_at, a.id AS attempt_id, st.position AS position
FROM study_trials st
JOIN studies s ON s.id = st.study_id
JOIN trials t ON t.id = st.trial_id
LEFT JOIN attempts a ON a.trial_id = t.id AND a.decides
"""

_ATTEMPTS = """
SELECT s.name AS study, a.name AS name, a.trial_id AS trial, a.number AS attempt, a.role AS role,
    a.batch_id AS batch, CASE WHEN a.state = 'ended' AND a.label IS NULL THEN 'unfinished' ELSE a.state END AS state,
    a.label AS label, a.cause AS cause, a.stage AS stage, a.rank AS rank,
    a.iteration AS iteration, a.decides AS decides, a.started_at AS started_at, a.ended_at AS ended_at,
    a.peak_allocated AS peak_allocated, a.peak_reserved AS peak_reserved, a.step_ms AS step_ms,
    a.step_ms_scatter AS step_ms_scatter, a.step_gc_ms AS step_gc_ms,
    a.tflops_per_gpu AS tflops_per_gpu, a.last_loss AS last_loss,
    a.device_name AS device_name, a.match_key AS match_key, a.software_hash AS software, a.effective_hash AS effective,
    a.run_dir AS run_dir, a.id AS attempt_id
FROM attempts a LEFT JOIN studies s ON s.id = a.study_id
"""

_RANKS = """
SELECT a.trial_id AS trial, a.number AS attempt, a.label AS label, r.rank AS rank, r.local_rank AS local_rank,
    r.host AS host, r.ended AS ended, r.exit_code AS exit_code, r.signal AS signal, r.stage AS stage,
    r.iteration AS iteration, r.measured AS measured, r.device_name AS device_name, r.device_uuid AS device_uuid,
    r.device_capacity AS device_capacity, r.allocator_retries AS allocator_retries,
    r.allocator_ooms AS allocator_ooms, r.exception_type AS exception_type,
    r.exception_message AS exception_message, r.peak_allocated AS peak_allocated,
    r.peak_allocated_stage AS peak_allocated_stage, r.peak_reserved AS peak_reserved,
    r.peak_reserved_stage AS peak_reserved_stage, a.id AS attempt_id, r.id AS rank_id
FROM ranks r JOIN attempts a ON a.id = r.attempt_id
"""

_STAGE_MEMORY = """
SELECT a.trial_id AS trial, a.number AS attempt, a.label AS label, r.rank AS rank, m.stage AS stage,
    m.entries AS entries, m.peak_allocated AS peak_allocated, m.peak_reserved AS peak_reserved,
    m.end_allocated AS end_allocated, m.end_reserved AS end_reserved, m.seconds AS seconds,
    m.window_allocated AS window_allocated, m.window_reserved AS window_reserved, a.id AS attempt_id
FROM stage_memory m JOIN ranks r ON r.id = m.rank_id JOIN attempts a ON a.id = r.attempt_id
"""

_ITERATIONS = """
SELECT a.trial_id AS trial, a.number AS attempt, r.rank AS rank, i.number AS iteration,
    i.milliseconds AS milliseconds, i.loss AS loss, i.grad_norm AS grad_norm, i.skipped AS skipped, i.nan AS nan,
    i.tflops_per_gpu AS tflops_per_gpu, i.peak_allocated AS peak_allocated, i.peak_reserved AS peak_reserved,
    a.id AS attempt_id
FROM iterations i JOIN ranks r ON r.id = i.rank_id JOIN attempts a ON a.id = r.attempt_id
"""

_COMPARE = """
SELECT v.study AS study, v.name AS name, v.trial AS trial, v.batch AS batch, v.granularity AS granularity,
    v.modules AS modules, v.method AS method, v.num_layers AS num_layers, v.is_control AS is_control,
    v.label AS label, v.peak_allocated AS peak_allocated, v.peak_allocated_rank AS peak_allocated_rank,
    v.peak_allocated_stage AS peak_allocated_stage, v.peak_reserved AS peak_reserved, v.step_ms AS step_ms,
    v.tflops_per_gpu AS tflops_per_gpu, c.trial AS control, c.peak_allocated AS control_peak_allocated,
    c.step_ms AS control_step_ms, v.peak_allocated - c.peak_allocated AS peak_allocated_delta,
    v.step_ms - c.step_ms AS step_ms_delta, v.match_key AS match_key
FROM (SELECT * FROM v_trials WHERE NOT is_control) v
LEFT JOIN (
    SELECT x.batch_id AS batch, x.match_key AS match_key, MIN(x.trial_id) AS trial,
        CAST(AVG(x.peak_allocated) AS BIGINT) AS peak_allocated, AVG(x.step_ms) AS step_ms
    FROM attempts x JOIN trials t ON t.id = x.trial_id WHERE t.is_control AND x.label = 'pass'
    GROUP BY x.batch_id, x.match_key) c ON c.batch = v.batch AND c.match_key = v.match_key
UNION ALL
SELECT v.study, v.name, v.trial, v.batch, v.granularity, v.modules, v.method, v.num_layers, v.is_control, v.label,
    v.peak_allocated, v.peak_allocated_rank, v.peak_allocated_stage, v.peak_reserved, v.step_ms, v.tflops_per_gpu,
    CASE WHEN v.label = 'pass' THEN v.trial END, CASE WHEN v.label = 'pass' THEN v.peak_allocated END,
    CASE WHEN v.label = 'pass' THEN v.step_ms END,
    CASE WHEN v.label = 'pass' THEN v.peak_allocated - v.peak_allocated END,
    CASE WHEN v.label = 'pass' THEN v.step_ms - v.step_ms END, v.match_key
FROM v_trials v WHERE v.is_control
"""

VIEWS = (
    View(
        "v_trials",
        "one trial of one study, with the attempt that decides; a control's step_ms is the median of its passing runs "
        "in the study, as in `compare`",
        _TRIALS,
    ),
    View("v_attempts", "one execution of a trial", _ATTEMPTS),
    View("v_ranks", "one rank of one attempt", _RANKS),
    View("v_stage_memory", "one stage of one rank: bytes over the whole run, and to the window's end", _STAGE_MEMORY),
    View("v_iterations", "one iteration of one rank", _ITERATIONS),
    View(
        "v_compare",
        "one trial with the mean of the passing controls of its own job and match key, as in `compare`, and both "
        "deltas; a control beside itself",
        _COMPARE,
    ),
)


def create_statements() -> list[str]:
    return [f"CREATE VIEW {view.name} AS {view.sql.strip()}" for view in VIEWS]


def drop_statements() -> list[str]:
    """In the opposite order, since later views stand on earlier ones."""
    return [f"DROP VIEW IF EXISTS {view.name}" for view in reversed(VIEWS)]
