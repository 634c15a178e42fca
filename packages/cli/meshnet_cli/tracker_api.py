"""The tracker's read-only pages, as the terminal commands read them. A key comes from ``MESHNET_API_KEY``."""

import json
import os
import urllib.error
import urllib.request
from collections.abc import Iterator
from http import HTTPStatus
from http.client import HTTPException, HTTPResponse
from typing import Any

from meshnet_cli.errors import CommandError
from meshnet_cli.tls import context_of_environment

REQUEST_TIMEOUT_S = 5.0
# The tracker sends a beat every 15 s.
STREAM_SILENCE_S_MAX = 45.0
KEY_VARIABLE = "MESHNET_API_KEY"


def get_json(tracker: str, path: str, key: str | None = None) -> Any:
    """``key`` goes before the environment's.

    Raises CommandError if the tracker cannot be reached or answers with something else.
    """
    url = f"{_base_url(tracker)}{path}"
    if not url.startswith(("http://", "https://")):
        raise CommandError(f"--tracker {tracker!r}: write a base URL such as http://127.0.0.1:8090")
    try:
        request = urllib.request.Request(url, headers=_key_header(key))  # noqa: S310 - checked above
        with _open(request, REQUEST_TIMEOUT_S) as response:
            return json.load(response)
    except urllib.error.HTTPError as error:
        raise _refused(url, error) from error
    except (OSError, ValueError, HTTPException) as error:
        reason = getattr(error, "reason", error)
        raise CommandError(f"no tracker answers at {tracker} ({reason}); start one with: meshnet tracker") from error


def read_events(tracker: str, path: str, last_id: str) -> Iterator[tuple[str, str]]:
    """Ids and data of a live event stream, until the tracker ends it or silence says that it is gone.

    Returns if the tracker went away. Raises CommandError if it answers with an error.
    """
    headers = {"last-event-id": last_id, **_key_header()}
    request = urllib.request.Request(f"{_base_url(tracker)}{path}", headers=headers)  # noqa: S310 - see get_json
    try:
        with _open(request, STREAM_SILENCE_S_MAX) as response:
            for line in response:
                field, _, value = line.decode().strip().partition(": ")
                if field == "id":
                    last_id = value
                elif field == "data":
                    yield last_id, value
    except urllib.error.HTTPError as error:
        raise _refused(request.full_url, error) from error
    except (OSError, HTTPException):
        return


def _base_url(tracker: str) -> str:
    """Also of what OpenAI's clients are given, with the ``/v1`` at its end."""
    return tracker.rstrip("/").removesuffix("/v1")


def _open(request: urllib.request.Request, timeout_s: float) -> HTTPResponse:
    """``request``'s scheme has been checked."""
    opened = urllib.request.urlopen(request, timeout=timeout_s, context=context_of_environment())  # noqa: S310
    assert isinstance(opened, HTTPResponse)
    return opened


def _key_header(key: str | None = None) -> dict[str, str]:
    key = key or os.environ.get(KEY_VARIABLE, "")
    return {"authorization": f"Bearer {key}"} if key else {}


def _refused(url: str, error: urllib.error.HTTPError) -> CommandError:
    """In the tracker's own words, where it has any."""
    try:
        with error:
            reason = json.load(error)["error"]["message"]
    except (OSError, ValueError, HTTPException, LookupError, TypeError):
        reason = error.reason
    return CommandError(f"{url} answered {error.code}: {reason}{_hint(error.code)}")


def _hint(status: int) -> str:
    match status:
        case HTTPStatus.UNAUTHORIZED | HTTPStatus.FORBIDDEN:
            return f" Set {KEY_VARIABLE} to the admin key that the tracker was started with."
        case HTTPStatus.NOT_FOUND:
            return " Is this a meshnet tracker?"
        case _:
            return ""


def served_models(tracker: str, key: str | None = None) -> list[str]:
    return [model["id"] for model in get_json(tracker, "/v1/models", key)["data"]]
