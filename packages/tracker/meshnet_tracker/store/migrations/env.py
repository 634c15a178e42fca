"""What Alembic runs: the steps, on the connection that ``database.migrate`` brought."""

from alembic import context

from meshnet_tracker.store.schema import metadata

context.configure(connection=context.config.attributes["connection"], target_metadata=metadata)
with context.begin_transaction():
    context.run_migrations()
