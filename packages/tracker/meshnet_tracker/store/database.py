"""Which database, and bringing it to the present schema.

``sqlite:///relative.db`` or ``sqlite:////absolute.db``. Migrations run before the server does, on the plain
driver: a database that cannot be used is then one line of text and not a failed start half-way.
"""

from pathlib import Path

from alembic import command
from alembic.config import Config
from alembic.util.exc import CommandError
from sqlalchemy import URL, create_engine, make_url
from sqlalchemy.exc import ArgumentError, SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine

from meshnet_tracker.errors import SettingsError

MIGRATIONS = Path(__file__).parent / "migrations"
BUSY_TIMEOUT_S = 5.0


def parse_url(text: str) -> URL:
    """Raises SettingsError if it is not the URL of an SQLite file."""
    try:
        url = make_url(text)
    except ArgumentError:
        url = None
    if url is None or url.drivername != "sqlite" or not url.database or url.database == ":memory:":
        raise SettingsError(f"--database must be sqlite:///FILE, or 'none' to keep nothing, not {text!r}")
    return url


def migrate(url: URL) -> None:
    """Make the file if need be, and bring it up to date. Raises SettingsError if that cannot be done."""
    config = Config()
    config.set_main_option("script_location", str(MIGRATIONS).replace("%", "%%"))
    engine = create_engine(url, connect_args={"timeout": BUSY_TIMEOUT_S})
    try:
        Path(url.database or "").parent.mkdir(parents=True, exist_ok=True)
        with engine.begin() as connection:
            config.attributes["connection"] = connection
            command.upgrade(config, "head")
        with engine.connect() as connection:
            # Readers and the writer then do not wait for each other.
            connection.exec_driver_sql("PRAGMA journal_mode=WAL")
    except (OSError, SQLAlchemyError, CommandError) as error:
        reason = getattr(error, "orig", None) or error
        raise SettingsError(
            f"cannot use the database {url.database} ({reason}); choose another --database, or 'none'"
        ) from error
    finally:
        engine.dispose()


def open_engine(url: URL) -> AsyncEngine:
    return create_async_engine(url.set(drivername="sqlite+aiosqlite"), connect_args={"timeout": BUSY_TIMEOUT_S})
