"""The tables. A change here comes with a migration in ``migrations/versions``."""

from sqlalchemy import Column, Float, LargeBinary, MetaData, String, Table

metadata = MetaData()

calls = Table(
    "calls",
    metadata,
    Column("id", String, primary_key=True),
    Column("at", Float, nullable=False, index=True),
    Column("record", LargeBinary, nullable=False),
)
"""``at`` is Unix time of the request; ``record`` the call as JSON, as ``GET /v1/calls`` lists it."""
