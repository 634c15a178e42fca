"""The tracker's read-only pages, as the terminal commands read them."""

import json
import urllib.error
import urllib.request
from http.client import HTTPException
from typing import Any

from meshnet_cli.errors import CommandError

REQUEST_TIMEOUT_S = 5.0


def get_json(tracker: str, path: str) -> Any:
    """Raises CommandError if the tracker cannot be reached or answers with something else."""
    url = f"{tracker.rstrip('/')}{path}"
    if not url.startswith(("http://", "https://")):
        raise CommandError(f"--tracker {tracker!r}: write a base URL such as http://127.0.0.1:8090")
    try:
        with urllib.request.urlopen(url, timeout=REQUEST_TIMEOUT_S) as response:  # noqa: S310 - checked above
            return json.load(response)
    except urllib.error.HTTPError as error:
        raise CommandError(f"{url} answered {error.code} {error.reason}") from error
    except (OSError, ValueError, HTTPException) as error:
        reason = getattr(error, "reason", error)
        raise CommandError(f"no tracker answers at {tracker} ({reason}); start one with: meshnet tracker") from error


def served_models(tracker: str) -> list[str]:
    return [model["id"] for model in get_json(tracker, "/v1/models")["data"]]
