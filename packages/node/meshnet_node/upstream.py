"""A node without layers of its own: in front of a server that speaks OpenAI's protocol and has the whole model.

That is how a machine room with vLLM, SGLang, Ollama or llama-server joins: the mesh sees one node that holds all
layers. HTTP in, HTTP out: chats are handed on as they are, their chunks come back as they are. The model counts
as one layer, because nobody can enter it in the middle, and its fingerprint is made of address and name: nothing
is known of its weights, so it is never mixed with shards of a file.
"""

import asyncio
import hashlib
import time
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, asynccontextmanager
from typing import Any

import aiohttp
import msgspec

from meshnet_node.errors import UpstreamError, UpstreamRefusalError
from meshnet_protocol.layers import LayerRange
from meshnet_protocol.messages import ModelCard

ONE_LAYER = LayerRange(0, 0)
PROBE_TOKENS = 32
PROBE_TIMEOUT_S = 120.0
EVENT_BYTES_MAX = 1024 * 1024
ERROR_BYTES_MAX = 64 * 1024
CONTEXT_TOKENS_DEFAULT = 4096
DONE = b"[DONE]"
_REFUSALS = frozenset({400, 413, 422})
_OVERLOADS = frozenset({429, 503})


class Upstream:
    """One model of one server. Counts the chats it has under way."""

    entry_layers = (0,)
    shard = ONE_LAYER
    kv_tokens = 0
    kv_tokens_max = 0
    """Whatever the server behind has, it does not say."""

    def __init__(self, http: aiohttp.ClientSession, url: str, card: ModelCard, *, key: str | None = None) -> None:
        self.card = card
        self.queue_depth = 0
        self._http = http
        self._url = _api_base(url)
        self._headers = _authorization(key)

    async def recut(self, _entry_layers: frozenset[int]) -> None:
        """There is nothing to cut."""

    async def measure_tokens_per_s(self) -> float:
        """From one short real chat, after one that warms up. Raises UpstreamError."""
        await self._probe(1)
        began_s = time.perf_counter()
        tokens = await self._probe(PROBE_TOKENS)
        return max(tokens, 1) / (time.perf_counter() - began_s)

    @asynccontextmanager
    async def open_chat(self, body: dict[str, Any]) -> AsyncIterator[AsyncGenerator[bytes, None]]:
        """The chat's events, once the upstream has accepted it; a usage event is among them.

        Raises UpstreamError, UpstreamRefusalError.
        """
        self.queue_depth += 1
        try:
            asked = {name: value for name, value in body.items() if value is not None and name != "meshnet"}
            asked |= {"model": self.card.name, "stream": True, "stream_options": {"include_usage": True}}
            async with self._post(asked) as response, aclosing(_events(response)) as events:
                yield events
        finally:
            self.queue_depth -= 1

    async def collect(self, body: dict[str, Any]) -> bytes:
        """The whole answer at once, as the upstream gives it. Raises UpstreamError, UpstreamRefusalError."""
        self.queue_depth += 1
        try:
            asked = {name: value for name, value in body.items() if value is not None and name != "meshnet"}
            async with self._post({**asked, "model": self.card.name, "stream": False}) as response:
                return await response.read()
        finally:
            self.queue_depth -= 1

    @asynccontextmanager
    async def _post(self, body: dict[str, Any]) -> AsyncIterator[aiohttp.ClientResponse]:
        url = f"{self._url}/chat/completions"
        try:
            async with self._http.post(url, json=body, headers=self._headers) as response:
                if response.status != 200:
                    raise await _error_of(response)
                yield response
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            raise UpstreamError(f"{url}: {error or type(error).__name__}") from error

    async def _probe(self, tokens: int) -> int:
        messages = [{"role": "user", "content": "Count from one to fifty, in words."}]
        try:
            async with asyncio.timeout(PROBE_TIMEOUT_S):
                answer = await self.collect({"messages": messages, "max_tokens": tokens, "temperature": 0})
            return int(msgspec.json.decode(answer)["usage"]["completion_tokens"])
        except (msgspec.MsgspecError, KeyError, TypeError, ValueError) as error:
            raise UpstreamError(f"{self._url} answers chats without usage; it cannot be measured") from error
        except TimeoutError as error:
            raise UpstreamError(f"{self._url} took longer than {PROBE_TIMEOUT_S:g} s for {tokens} tokens") from error


async def find_card(http: aiohttp.ClientSession, url: str, name: str | None, *, key: str | None = None) -> ModelCard:
    """What the upstream serves: ``name``, or its only model. Raises UpstreamError."""
    address = f"{_api_base(url)}/models"
    try:
        async with http.get(address, headers=_authorization(key)) as response:
            if response.status != 200:
                raise UpstreamError(f"{address} answered {response.status}; give the base URL of an OpenAI endpoint")
            models = {model["id"]: model for model in msgspec.json.decode(await response.read())["data"]}
    except (aiohttp.ClientError, OSError, TimeoutError) as error:
        raise UpstreamError(f"--upstream {url} cannot be reached ({error or type(error).__name__})") from error
    except (msgspec.MsgspecError, KeyError, TypeError) as error:
        raise UpstreamError(f"{address} is no list of models; give the base URL of an OpenAI endpoint") from error
    if name is None and len(models) != 1:
        raise UpstreamError(f"{url} serves {len(models)} models; choose with --model-name: {', '.join(sorted(models))}")
    chosen = name or next(iter(models))
    if chosen not in models:
        raise UpstreamError(f"{url} has no model {chosen!r}; it has: {', '.join(sorted(models))}")
    return ModelCard(
        name=chosen,
        fingerprint=hashlib.sha256(f"upstream\n{_api_base(url)}\n{chosen}".encode()).hexdigest(),
        architecture="upstream",
        layer_count=ONE_LAYER.layer_count,
        hidden_size=1,
        context_tokens=_context_of(models[chosen]),
    )


def _context_of(model: dict[str, Any]) -> int:
    """As vLLM and llama-server tell it; the protocol itself has no word for it."""
    meta = model.get("meta")
    found = model.get("max_model_len") or (meta.get("n_ctx_train") if isinstance(meta, dict) else None)
    return found if isinstance(found, int) and found > 0 else CONTEXT_TOKENS_DEFAULT


def _api_base(url: str) -> str:
    base = url.rstrip("/")
    return base if base.endswith("/v1") else f"{base}/v1"


def _authorization(key: str | None) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"} if key else {}


async def _error_of(response: aiohttp.ClientResponse) -> UpstreamError:
    body = await response.content.read(ERROR_BYTES_MAX)
    try:
        message = str(msgspec.json.decode(body)["error"]["message"])
    except (msgspec.MsgspecError, KeyError, TypeError):
        message = body[:200].decode("utf-8", errors="replace")
    if response.status in _REFUSALS:
        return UpstreamRefusalError(message)
    return UpstreamError(f"upstream answered {response.status}: {message}", is_overload=response.status in _OVERLOADS)


async def _events(response: aiohttp.ClientResponse) -> AsyncGenerator[bytes, None]:
    """The data of each event, ``[DONE]`` left out. Servers that send no usage get one made of their chunks."""
    has_usage, pieces = False, 0
    try:
        async for line in response.content:
            data = line.strip().removeprefix(b"data:").strip() if line.startswith(b"data:") else b""
            if data == DONE:
                break
            if data:
                chunk = msgspec.json.decode(data)
                has_usage = has_usage or chunk.get("usage") is not None
                pieces += any(choice.get("delta", {}).get("content") for choice in chunk.get("choices", ()))
                yield data
        else:
            raise UpstreamError("the upstream ended its stream early")
    except (msgspec.MsgspecError, AttributeError, TypeError, ValueError) as error:
        raise UpstreamError(f"the upstream sent an unreadable stream: {error}") from error
    if not has_usage:
        usage = {"prompt_tokens": 0, "completion_tokens": pieces, "total_tokens": pieces}
        yield msgspec.json.encode({"choices": [], "usage": usage})
