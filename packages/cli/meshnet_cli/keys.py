"""Keys and tokens as people give them: on the command line, in the environment, or in files.

A command line can be read by everybody on the machine, so whoever shares it uses files or the environment.
"""

from collections.abc import Iterable, Sequence
from pathlib import Path

from meshnet_cli.errors import CommandError


def gather_keys(given: Sequence[str] | None, files: Sequence[Path] | None, *, flag: str) -> tuple[str, ...]:
    """All of them, in order. Texts may hold several with commas between, files one a line, ``#`` for comments."""
    keys = split_list(given)
    for file in files or ():
        try:
            lines = file.read_text().splitlines()
        except (OSError, ValueError) as error:
            raise CommandError(f"{flag}-file {file}: {error}") from error
        found = [line.strip() for line in lines if line.strip() and not line.strip().startswith("#")]
        if not found:
            raise CommandError(f"{flag}-file {file}: the file holds no key")
        keys += found
    return tuple(dict.fromkeys(keys))


def one_key(given: str | None, file: Path | None, *, flag: str) -> str:
    """The one that is given, or empty. Raises CommandError if there are several."""
    keys = gather_keys([given] if given else None, [file] if file else None, flag=flag)
    if len(keys) > 1:
        raise CommandError(f"{flag}: give one, not {len(keys)}")
    return keys[0] if keys else ""


def split_list(texts: Iterable[str] | None) -> list[str]:
    return [part.strip() for text in texts or () for part in text.split(",") if part.strip()]
