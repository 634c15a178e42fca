"""What the endpoints answer with: JSON, by the library that also reads it."""

from typing import Any

import msgspec
from starlette.responses import Response


def json_reply(value: Any) -> Response:
    return Response(msgspec.json.encode(value), media_type="application/json")
