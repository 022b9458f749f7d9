"""The first release."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None


def upgrade() -> None:
    op.create_table(
        "effective",
        sa.Column("hash", sa.Text(), nullable=False),
        sa.Column("content", sa.JSON(none_as_null=True), nullable=False),
        sa.PrimaryKeyConstraint("hash"),
    )
    op.create_table(
        "software",
        sa.Column("hash", sa.Text(), nullable=False),
        sa.Column("content", sa.JSON(none_as_null=True), nullable=False),
        sa.PrimaryKeyConstraint("hash"),
    )
    op.create_table(
        "sources",
        sa.Column("path", sa.Text(), nullable=False),
        sa.Column("stamp", sa.BigInteger(), nullable=True),
        sa.Column("signature", sa.Text(), nullable=False),
        sa.Column("problem", sa.Text(), nullable=True),
        sa.PrimaryKeyConstraint("path"),
    )
    op.create_table(
        "studies",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("created_at", sa.Double(), nullable=True),
        sa.Column("settings", sa.JSON(none_as_null=True), nullable=True),
        sa.PrimaryKeyConstraint("id"),
        sa.UniqueConstraint("name"),
    )
    op.create_table(
        "trials",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("trainer", sa.Text(), nullable=False),
        sa.Column("world_size", sa.BigInteger(), nullable=False),
        sa.Column("repeat", sa.BigInteger(), nullable=False),
        sa.Column("origin", sa.Text(), nullable=False),
        sa.Column("requested", sa.JSON(none_as_null=True), nullable=False),
        sa.Column("target", sa.JSON(none_as_null=True), nullable=True),
        sa.Column("is_control", sa.Boolean(), nullable=False),
        sa.Column("recompute_granularity", sa.Text(), nullable=True),
        sa.Column("recompute_modules", sa.Text(), nullable=True),
        sa.Column("recompute_method", sa.Text(), nullable=True),
        sa.Column("recompute_num_layers", sa.Text(), nullable=True),
        sa.Column("steady_first", sa.BigInteger(), nullable=True),
        sa.Column("steady_last", sa.BigInteger(), nullable=True),
        sa.Column("train_iters", sa.BigInteger(), nullable=True),
        sa.Column("first_seen", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_table(
        "batches",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("study_id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("user", sa.Text(), nullable=True),
        sa.Column("folder", sa.Text(), nullable=False),
        sa.Column("launcher", sa.JSON(none_as_null=True), nullable=False),
        sa.Column("state", sa.Text(), nullable=True),
        sa.Column("host", sa.Text(), nullable=True),
        sa.Column("heartbeat", sa.Double(), nullable=True),
        sa.Column("job", sa.JSON(none_as_null=True), nullable=True),
        sa.Column("parallel_trials", sa.BigInteger(), nullable=False),
        sa.Column("max_attempts", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(["study_id"], ["studies.id"], ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_index(op.f("ix_batches_study_id"), "batches", ["study_id"], unique=False)
    op.create_table(
        "study_trials",
        sa.Column("study_id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("trial_id", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("position", sa.BigInteger(), nullable=False),
        sa.Column("role", sa.Text(), nullable=False),
        sa.Column("status", sa.Text(), nullable=False),
        sa.Column("reasons", sa.JSON(none_as_null=True), nullable=True),
        sa.ForeignKeyConstraint(["study_id"], ["studies.id"], ondelete="CASCADE"),
        sa.ForeignKeyConstraint(["trial_id"], ["trials.id"], ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("study_id", "trial_id"),
    )
    op.create_index(op.f("ix_study_trials_trial_id"), "study_trials", ["trial_id"], unique=False)
    op.create_table(
        "attempts",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("uid", sa.Text(), nullable=False),
        sa.Column("trial_id", sa.Text(), nullable=False),
        sa.Column("number", sa.Text(), nullable=False),
        sa.Column("batch_id", sa.Text(), nullable=True),
        sa.Column("study_id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=True),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("role", sa.Text(), nullable=False),
        sa.Column("user", sa.Text(), nullable=True),
        sa.Column("run_dir", sa.Text(), nullable=False),
        sa.Column("beacon_dir", sa.Text(), nullable=True),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("started_at", sa.Double(), nullable=True),
        sa.Column("ended_at", sa.Double(), nullable=True),
        sa.Column("decides", sa.Boolean(), nullable=False),
        sa.Column("label", sa.Text(), nullable=True),
        sa.Column("cause", sa.Text(), nullable=True),
        sa.Column("stage", sa.Text(), nullable=True),
        sa.Column("rank", sa.BigInteger(), nullable=True),
        sa.Column("iteration", sa.BigInteger(), nullable=True),
        sa.Column("classifier", sa.Text(), nullable=True),
        sa.Column("match_key", sa.Text(), nullable=True),
        sa.Column("ranks_recorded", sa.BigInteger(), nullable=False),
        sa.Column("device_kind", sa.Text(), nullable=True),
        sa.Column("device_name", sa.Text(), nullable=True),
        sa.Column("device_capacity", sa.BigInteger(), nullable=True),
        sa.Column("software_hash", sa.Text(), nullable=True),
        sa.Column("effective_hash", sa.Text(), nullable=True),
        sa.Column("peak_allocated", sa.BigInteger(), nullable=True),
        sa.Column("peak_allocated_rank", sa.BigInteger(), nullable=True),
        sa.Column("peak_allocated_stage", sa.Text(), nullable=True),
        sa.Column("peak_reserved", sa.BigInteger(), nullable=True),
        sa.Column("peak_reserved_rank", sa.BigInteger(), nullable=True),
        sa.Column("peak_reserved_stage", sa.Text(), nullable=True),
        sa.Column("step_ms", sa.Double(), nullable=True),
        sa.Column("step_ms_scatter", sa.Double(), nullable=True),
        sa.Column("step_count", sa.BigInteger(), nullable=True),
        sa.Column("tflops_per_gpu", sa.Double(), nullable=True),
        sa.Column("last_loss", sa.Double(), nullable=True),
        sa.Column("replays", sa.BigInteger(), nullable=True),
        sa.Column("allocator_retries", sa.BigInteger(), nullable=True),
        sa.Column("allocator_ooms", sa.BigInteger(), nullable=True),
        sa.Column("record", sa.JSON(none_as_null=True), nullable=True),
        sa.Column("spec", sa.JSON(none_as_null=True), nullable=True),
        sa.Column("also_ranks", sa.JSON(none_as_null=True), nullable=True),
        sa.Column("rules", sa.JSON(none_as_null=True), nullable=True),
        sa.Column("evidence", sa.JSON(none_as_null=True), nullable=True),
        sa.Column("notes", sa.JSON(none_as_null=True), nullable=True),
        sa.Column("failed_allocation", sa.JSON(none_as_null=True), nullable=True),
        sa.Column("hosts", sa.JSON(none_as_null=True), nullable=True),
        sa.Column("losses", sa.JSON(none_as_null=True), nullable=True),
        sa.Column("stage_peaks", sa.JSON(none_as_null=True), nullable=True),
        sa.ForeignKeyConstraint(["batch_id"], ["batches.id"], ondelete="SET NULL"),
        sa.ForeignKeyConstraint(
            ["effective_hash"],
            ["effective.hash"],
        ),
        sa.ForeignKeyConstraint(
            ["software_hash"],
            ["software.hash"],
        ),
        sa.ForeignKeyConstraint(["study_id"], ["studies.id"], ondelete="SET NULL"),
        sa.ForeignKeyConstraint(["trial_id"], ["trials.id"], ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("id"),
        sa.UniqueConstraint("uid"),
    )
    op.create_index(op.f("ix_attempts_batch_id"), "attempts", ["batch_id"], unique=False)
    op.create_index(op.f("ix_attempts_effective_hash"), "attempts", ["effective_hash"], unique=False)
    op.create_index(op.f("ix_attempts_label"), "attempts", ["label"], unique=False)
    op.create_index(op.f("ix_attempts_match_key"), "attempts", ["match_key"], unique=False)
    op.create_index(op.f("ix_attempts_software_hash"), "attempts", ["software_hash"], unique=False)
    op.create_index(op.f("ix_attempts_state"), "attempts", ["state"], unique=False)
    op.create_index(op.f("ix_attempts_study_id"), "attempts", ["study_id"], unique=False)
    op.create_index("ix_attempts_trial_decides", "attempts", ["trial_id", "decides", "state", "label"], unique=False)
    op.create_table(
        "batch_trials",
        sa.Column("batch_id", sa.Text(), nullable=False),
        sa.Column("position", sa.BigInteger(), nullable=False),
        sa.Column("trial_id", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("role", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(["batch_id"], ["batches.id"], ondelete="CASCADE"),
        sa.ForeignKeyConstraint(["trial_id"], ["trials.id"], ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("batch_id", "position"),
    )
    op.create_index(op.f("ix_batch_trials_trial_id"), "batch_trials", ["trial_id"], unique=False)
    op.create_table(
        "ranks",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), autoincrement=False, nullable=False),
        sa.Column("attempt_id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("rank", sa.BigInteger(), nullable=False),
        sa.Column("local_rank", sa.BigInteger(), nullable=False),
        sa.Column("host", sa.Text(), nullable=False),
        sa.Column("started_at", sa.Double(), nullable=False),
        sa.Column("ended_at", sa.Double(), nullable=True),
        sa.Column("ended", sa.Text(), nullable=False),
        sa.Column("exit_code", sa.BigInteger(), nullable=True),
        sa.Column("signal", sa.BigInteger(), nullable=True),
        sa.Column("stage", sa.Text(), nullable=True),
        sa.Column("iteration", sa.BigInteger(), nullable=True),
        sa.Column("microbatch", sa.BigInteger(), nullable=True),
        sa.Column("measured", sa.Boolean(), nullable=False),
        sa.Column("device_name", sa.Text(), nullable=True),
        sa.Column("device_uuid", sa.Text(), nullable=True),
        sa.Column("device_capacity", sa.BigInteger(), nullable=True),
        sa.Column("allocator_retries", sa.BigInteger(), nullable=True),
        sa.Column("allocator_ooms", sa.BigInteger(), nullable=True),
        sa.Column("optimizer_state", sa.Boolean(), nullable=True),
        sa.Column("exception_type", sa.Text(), nullable=True),
        sa.Column("exception_message", sa.Text(), nullable=True),
        sa.Column("exception_stage", sa.Text(), nullable=True),
        sa.Column("peak_allocated", sa.BigInteger(), nullable=True),
        sa.Column("peak_allocated_stage", sa.Text(), nullable=True),
        sa.Column("peak_reserved", sa.BigInteger(), nullable=True),
        sa.Column("peak_reserved_stage", sa.Text(), nullable=True),
        sa.Column("software_hash", sa.Text(), nullable=True),
        sa.Column("effective_hash", sa.Text(), nullable=True),
        sa.Column("evidence", sa.LargeBinary(), nullable=False),
        sa.ForeignKeyConstraint(["attempt_id"], ["attempts.id"], ondelete="CASCADE"),
        sa.ForeignKeyConstraint(
            ["effective_hash"],
            ["effective.hash"],
        ),
        sa.ForeignKeyConstraint(
            ["software_hash"],
            ["software.hash"],
        ),
        sa.PrimaryKeyConstraint("id"),
        sa.UniqueConstraint("attempt_id", "rank", name="uq_ranks_attempt_rank"),
    )
    op.create_table(
        "iterations",
        sa.Column("rank_id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("number", sa.BigInteger(), nullable=False),
        sa.Column("milliseconds", sa.Double(), nullable=False),
        sa.Column("loss", sa.Double(), nullable=True),
        sa.Column("grad_norm", sa.Double(), nullable=True),
        sa.Column("skipped", sa.Boolean(), nullable=False),
        sa.Column("nan", sa.Boolean(), nullable=False),
        sa.Column("tflops_per_gpu", sa.Double(), nullable=True),
        sa.Column("peak_allocated", sa.BigInteger(), nullable=True),
        sa.Column("peak_reserved", sa.BigInteger(), nullable=True),
        sa.ForeignKeyConstraint(["rank_id"], ["ranks.id"], ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("rank_id", "number"),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "stage_memory",
        sa.Column("rank_id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("stage", sa.Text(), nullable=False),
        sa.Column("entries", sa.BigInteger(), nullable=False),
        sa.Column("peak_allocated", sa.BigInteger(), nullable=True),
        sa.Column("peak_reserved", sa.BigInteger(), nullable=True),
        sa.Column("end_allocated", sa.BigInteger(), nullable=True),
        sa.Column("end_reserved", sa.BigInteger(), nullable=True),
        sa.Column("seconds", sa.Double(), nullable=True),
        sa.Column("window_allocated", sa.BigInteger(), nullable=True),
        sa.Column("window_reserved", sa.BigInteger(), nullable=True),
        sa.ForeignKeyConstraint(["rank_id"], ["ranks.id"], ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("rank_id", "stage"),
        sqlite_with_rowid=False,
    )
