"""Frames on the link between two neighbouring hops: a small typed header, then raw bytes.

    0      4                4+n
    ├──────┼────────────────┼──────────────────────────┤
    │ n u32│ header, msgpack│ payload: hidden states   │
    └──────┴────────────────┴──────────────────────────┘

The payload of a ``Step`` is float32, row-major, shape (token_count, hidden_size), little-endian: what
the next segment takes as it is. Float32 and not a smaller type, because a split model must give the
very logits of the whole one. Payloads are handed on as memoryviews and never copied here.

Both ends greet first, prove their wallets, and end the link unless they speak the same protocol about the same
weights. A session
is opened once along the whole chain and closed once. Every ``Step`` is answered by one
``StepReply`` that travels back along the chain, each hop adding its own timing; ``token_id`` is set
when the step asked for a token. A hop that cannot go on sends ``SessionFailed`` and forgets the session.
"""

import struct

import msgspec

from meshnet_protocol.errors import LocalProtocolError, RemoteProtocolError
from meshnet_protocol.ids import NodeId, SessionId, WalletId
from meshnet_protocol.messages import PROTOCOL_VERSION, HopTiming, RoutePlan, Sampling, TokenLogprobs

HEADER_BYTES_MAX = 1024 * 1024
"""Room for an opening with a grammar and the tokens that penalties look at."""
FRAME_BYTES_MAX = 64 * 1024 * 1024
HIDDEN_ITEM_BYTES = 4
STEP_ROWS_MAX = 512
"""Rows in one step, whatever the nodes' own chunk sizes: 32 MiB at a hidden size of 16,384."""

_PREFIX = struct.Struct("<I")

HIDDEN_DTYPE = "float32"


class Greeting(msgspec.Struct, frozen=True, tag="greeting", kw_only=True):
    """The first frame in each direction: what both ends must agree on before rows mean anything."""

    node_id: NodeId
    fingerprint: str
    """Of the model's weights, in full."""
    hidden_size: int
    dtype: str = HIDDEN_DTYPE
    protocol_version: int = PROTOCOL_VERSION
    wallet: WalletId = WalletId("")
    nonce: bytes = b""
    """Drawn anew for every link."""
    proof: bytes = b""
    """Of the accepting end, that the wallet is its own."""


class LinkProof(msgspec.Struct, frozen=True, tag="proof", kw_only=True):
    """The connecting end's second frame, if it named a wallet: that the wallet is its own."""

    proof: bytes


class OpenSession(msgspec.Struct, frozen=True, tag="open", kw_only=True):
    plan: RoutePlan
    hop_index: int
    """Whose turn it is in ``plan.hops``: the receiver's."""
    sampling: Sampling
    prefix: tuple[bytes, ...] = ()
    """The prompt as a chain of block hashes (``prefix.py``): what a hop may still hold of an ended session."""


class SessionOpened(msgspec.Struct, frozen=True, tag="opened", kw_only=True):
    session_id: SessionId
    context_tokens: int
    """The smallest context of this hop and all later ones: what prompt and answer must fit."""
    held_tokens: int = 0
    """Of the prompt, held by this hop and all later ones: the first step may start there, or anywhere before."""


class Step(msgspec.Struct, frozen=True, tag="step", kw_only=True):
    session_id: SessionId
    position: int
    """Position of the first row in the sequence."""
    token_count: int
    wants_token: bool


class StepReply(msgspec.Struct, frozen=True, tag="reply", kw_only=True):
    session_id: SessionId
    position: int
    token_id: int | None
    logprobs: TokenLogprobs | None = None
    """Of the token, if the session asked for them."""
    timings: tuple[HopTiming, ...]
    """From the answering hop to the tail, in route order."""


class SessionFailed(msgspec.Struct, frozen=True, tag="failed", kw_only=True):
    session_id: SessionId
    code: str
    message: str
    culprit: NodeId | None = None
    reporter: NodeId | None = None
    """Who found the culprit unreachable or silent, if that is what failed: the link between the two is broken."""


class CloseSession(msgspec.Struct, frozen=True, tag="close", kw_only=True):
    session_id: SessionId
    remember: tuple[bytes, ...] = ()
    """The rows of the session as a chain of block hashes: a slot may keep them until somebody needs it."""


FrameHeader = Greeting | LinkProof | OpenSession | SessionOpened | Step | StepReply | SessionFailed | CloseSession

_encoder = msgspec.msgpack.Encoder()
_decoder: msgspec.msgpack.Decoder[FrameHeader] = msgspec.msgpack.Decoder(FrameHeader)


def encode_frame(header: FrameHeader, payload: bytes | memoryview = b"") -> bytes:
    """One frame as bytes. Raises LocalProtocolError if it would be larger than the limits."""
    head = _encoder.encode(header)
    if len(head) > HEADER_BYTES_MAX or len(head) + len(payload) + _PREFIX.size > FRAME_BYTES_MAX:
        raise LocalProtocolError(f"{type(header).__name__} frame of {len(head)} + {len(payload)} bytes is too large")
    return b"".join((_PREFIX.pack(len(head)), head, payload))


def decode_frame(data: bytes | memoryview) -> tuple[FrameHeader, memoryview]:
    """Header and payload; the payload is a view into ``data``. Raises RemoteProtocolError on anything else."""
    view = memoryview(data)
    if not _PREFIX.size <= len(view) <= FRAME_BYTES_MAX:
        raise RemoteProtocolError(f"a frame of {len(view)} bytes is outside {_PREFIX.size} to {FRAME_BYTES_MAX}")
    (head_bytes,) = _PREFIX.unpack_from(view)
    if head_bytes > HEADER_BYTES_MAX or head_bytes > len(view) - _PREFIX.size:
        raise RemoteProtocolError(f"a frame header of {head_bytes} bytes does not fit its frame")
    body = _PREFIX.size + head_bytes
    try:
        header = _decoder.decode(view[_PREFIX.size : body])
    except (msgspec.MsgspecError, RecursionError) as error:
        raise RemoteProtocolError(f"unreadable frame header: {error}") from error
    return header, view[body:]


def check_greeting(theirs: Greeting, mine: Greeting) -> None:
    """Raises RemoteProtocolError, naming what differs, unless rows of one mean the same to the other."""
    for what, their_value, my_value in (
        ("protocol version", theirs.protocol_version, mine.protocol_version),
        ("weights (fingerprint)", theirs.fingerprint, mine.fingerprint),
        ("hidden size", theirs.hidden_size, mine.hidden_size),
        ("dtype of hidden states", theirs.dtype, mine.dtype),
    ):
        if their_value != my_value:
            raise RemoteProtocolError(
                f"{what} differs: {theirs.node_id} has {their_value}, {mine.node_id} has {my_value}"
            )


def check_step_payload(step: Step, payload: memoryview, *, hidden_size: int) -> None:
    """Raises RemoteProtocolError unless the payload is ``token_count`` rows of ``hidden_size`` floats."""
    if not 1 <= step.token_count <= STEP_ROWS_MAX:
        raise RemoteProtocolError(f"a step of {step.token_count} rows; 1 to {STEP_ROWS_MAX} are allowed")
    if step.position < 0:
        raise RemoteProtocolError(f"a step at position {step.position}")
    expected = step.token_count * hidden_size * HIDDEN_ITEM_BYTES
    if len(payload) != expected:
        raise RemoteProtocolError(f"a step payload of {len(payload)} bytes where {expected} are due")
