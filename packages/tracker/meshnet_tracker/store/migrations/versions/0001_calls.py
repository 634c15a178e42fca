"""The calls that the call wall shows."""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None


def upgrade() -> None:
    op.create_table(
        "calls",
        sa.Column("id", sa.String(), primary_key=True),
        sa.Column("at", sa.Float(), nullable=False),
        sa.Column("record", sa.LargeBinary(), nullable=False),
    )
    op.create_index("ix_calls_at", "calls", ["at"])


def downgrade() -> None:
    op.drop_table("calls")
