"""A node without layers of its own: in front of a server that speaks OpenAI's protocol and has the whole model.

That is how a machine room with vLLM, SGLang, Ollama or llama-server joins: the mesh sees one node that holds all
layers. Requests go on in OpenAI's own dialect, and chunks come back as a head's (``upstream_dialect.py``). The model
counts as one layer, because nobody can enter it in the middle. Nothing is known of its weights: its fingerprint is
made of name and context, so that two machine rooms with the same model stand in for each other, and never mix with
shards of a file.
"""

import asyncio
import hashlib
import time
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, asynccontextmanager, nullcontext
from typing import Any
from uuid import uuid4

import aiohttp
import msgspec

from meshnet_node.errors import ContextOverflowError, UpstreamError, UpstreamRefusalError
from meshnet_node.upstream_dialect import AnswerReader, UpstreamAsk, asks_of, sum_usage
from meshnet_protocol.awake_timeout import AwakeTimeout
from meshnet_protocol.layers import LayerRange
from meshnet_protocol.messages import ChatChunk, Choice, Delta, HeadRequest, ModelCard, Usage

ONE_LAYER = LayerRange(0, 0)
PROBE_TOKENS = 32
PROBE_TIMEOUT_S = 120.0
ANSWER_S_MAX = 1.5
"""For a sign that it is there. The tracker gives a probe 2 s."""
EVENT_BYTES_MAX = 1024 * 1024
ERROR_BYTES_MAX = 64 * 1024
CONTEXT_TOKENS_DEFAULT = 4096
OVERFLOW_WORDS = "maximum context length"
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

    async def is_well(self) -> bool:
        """Whether the server behind answers. It is asked for its models: a chat would take somebody's place."""
        try:
            async with (
                AwakeTimeout(ANSWER_S_MAX),
                self._http.get(f"{self._url}/models", headers=self._headers) as response,
            ):
                return response.status == 200
        except (aiohttp.ClientError, OSError):  # TimeoutError is one too.
            return False

    @asynccontextmanager
    async def open_chat(self, request: HeadRequest) -> AsyncIterator[AsyncGenerator[ChatChunk, None]]:
        """The request's chunks, once the upstream has accepted its first answer; usage is the last of them.

        Raises UpstreamError, UpstreamRefusalError.
        """
        self.queue_depth += 1
        try:
            asks = deque(asks_of(request, self.card.name))
            if request.max_tokens == 0:  # servers take it for "without limit", or refuse it
                yield self._nothing(asks)
                return
            async with self._post(asks[0]) as response, aclosing(self._answers(request, asks, response)) as chunks:
                yield chunks
        finally:
            self.queue_depth -= 1

    async def _answers(
        self, request: HeadRequest, asks: "deque[UpstreamAsk]", first: aiohttp.ClientResponse
    ) -> AsyncGenerator[ChatChunk, None]:
        readers: list[AnswerReader] = []
        chunk = self._new_chunk()
        for ask in asks:
            readers.append(reader := ask.new_reader())
            opened = nullcontext(first) if ask is asks[0] else self._post(ask)
            async with opened as response, aclosing(_events(response)) as events:
                async for event in events:
                    if choice := _read(reader, event):
                        yield msgspec.structs.replace(chunk, choices=[choice])
            yield msgspec.structs.replace(chunk, choices=reader.finish())
        yield msgspec.structs.replace(chunk, usage=sum_usage(readers, request.n))

    async def _nothing(self, asks: "deque[UpstreamAsk]") -> AsyncGenerator[ChatChunk, None]:
        ends = [Choice(index=ask.index, delta=Delta(), finish_reason="length") for ask in asks]
        no_tokens = Usage(prompt_tokens=0, completion_tokens=0, total_tokens=0)
        yield msgspec.structs.replace(self._new_chunk(), choices=ends, usage=no_tokens)

    def _new_chunk(self) -> ChatChunk:
        return ChatChunk(id=f"chatcmpl-{uuid4().hex}", created=int(time.time()), model=self.card.name, choices=[])

    @asynccontextmanager
    async def _post(self, ask: UpstreamAsk) -> AsyncIterator[aiohttp.ClientResponse]:
        url = f"{self._url}{ask.path}"
        try:
            async with self._http.post(url, json=ask.body, headers=self._headers) as response:
                if response.status != 200:
                    raise await _error_of(response)
                yield response
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            raise UpstreamError(f"{url}: {error or type(error).__name__}") from error

    async def _probe(self, tokens: int) -> int:
        messages = [{"role": "user", "content": "Count from one to fifty, in words."}]
        request = HeadRequest(messages=messages, max_tokens=tokens, temperature=0.0)
        count = 0
        try:
            async with asyncio.timeout(PROBE_TIMEOUT_S), self.open_chat(request) as chunks:
                async for chunk in chunks:
                    count = chunk.usage.completion_tokens if isinstance(chunk.usage, Usage) else count
        except TimeoutError as error:
            raise UpstreamError(f"{self._url} took longer than {PROBE_TIMEOUT_S:g} s for {tokens} tokens") from error
        return count


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
    context_tokens = _context_of(models[chosen])
    return ModelCard(
        name=chosen,
        fingerprint=hashlib.sha256(f"upstream\n{chosen}\n{context_tokens}".encode()).hexdigest(),
        architecture="upstream",
        layer_count=ONE_LAYER.layer_count,
        hidden_size=1,
        context_tokens=context_tokens,
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
        told: dict[str, Any] = msgspec.json.decode(body)["error"]
        message = str(told["message"])
    except (msgspec.MsgspecError, KeyError, TypeError):
        told, message = {}, body[:200].decode("utf-8", errors="replace")
    if response.status in _REFUSALS:
        return _refusal(told, message)
    return UpstreamError(f"upstream answered {response.status}: {message}", is_overload=response.status in _OVERLOADS)


def _refusal(told: dict[str, Any], message: str) -> UpstreamRefusalError:
    """Servers say in different ways that a prompt is too long; clients look for OpenAI's."""
    code, param = (told.get(name) if isinstance(told.get(name), str) else None for name in ("code", "param"))
    if OVERFLOW_WORDS in message or told.get("type") == "exceed_context_size_error":  # llama-server's word
        code = ContextOverflowError.code
        if OVERFLOW_WORDS not in message:
            message = f"This model's {OVERFLOW_WORDS} is {told.get('n_ctx', 'less than that many')} tokens: {message}"
    return UpstreamRefusalError(message, code=code, param=param)


async def _events(response: aiohttp.ClientResponse) -> AsyncGenerator[bytes, None]:
    """The data of each event, up to ``[DONE]``, which is left out."""
    try:
        async for line in response.content:
            data = line.strip().removeprefix(b"data:").strip() if line.startswith(b"data:") else b""
            if data == DONE:
                return
            if data:
                yield data
    except ValueError as error:
        raise UpstreamError(f"the upstream sent an unreadable stream: {error}") from error
    raise UpstreamError("the upstream ended its stream early")


def _read(reader: AnswerReader, event: bytes) -> Choice | None:
    try:
        return reader.read(msgspec.json.decode(event, type=dict[str, Any]))
    except (msgspec.MsgspecError, KeyError, IndexError, AttributeError, TypeError, ValueError) as error:
        raise UpstreamError(f"the upstream sent an unreadable stream: {error}") from error
