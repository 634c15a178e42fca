"""What nodes and tracker tell each other over HTTP, as JSON.

Every struct is strict about types and lenient about unknown fields, so that a newer peer may say more.
Durations are seconds. Clocks of strangers do not agree, so only the tracker tells the time, and nodes go by it.
"""

from typing import Any

import msgspec

from meshnet_protocol.ids import Incarnation, ModelKey, NodeId, SessionId, WalletId, make_model_key, make_node_id
from meshnet_protocol.layers import LayerRange

TICKET_EXPIRED_CODE = "ticket_expired"
"""Of an error: nobody's fault, for whose clock or sleep it was, nobody knows."""
PROTOCOL_VERSION = 3
PENALTY_TOKENS_DEFAULT = 64
PENALTY_TOKENS_MAX = 65536


class Message(msgspec.Struct, frozen=True, kw_only=True):
    """Base of everything below: immutable, keyword-only."""


class LayerSpan(Message, frozen=True, kw_only=True):
    """A ``LayerRange`` as it travels: ``{"first": 0, "last": 16}``, both included."""

    first: int
    last: int

    def to_range(self) -> LayerRange:
        return LayerRange(self.first, self.last)

    @classmethod
    def of(cls, layers: LayerRange) -> "LayerSpan":
        return cls(first=layers.first, last=layers.last)


class ModelCard(Message, frozen=True, kw_only=True):
    """What is true of a model wherever its layers lie."""

    name: str
    fingerprint: str
    architecture: str
    layer_count: int
    hidden_size: int
    context_tokens: int

    @property
    def model_key(self) -> ModelKey:
        return make_model_key(name=self.name, fingerprint=self.fingerprint)


class Exactness(Message, frozen=True, kw_only=True):
    """Whether a node computes the same bits however rows are grouped, and with whom it shares those bits."""

    mode: str = "auto"
    """What its owner asked for: ``auto``, ``on`` or ``off``."""
    is_exact: bool | None = None
    """From the node's self-test at start; None: not tested."""
    class_id: str = ""
    """Equal on two nodes: they compute equal bits from equal rows, if both are exact."""
    description: str = ""
    """What the class is made of: build, instruction set, cache type."""


class Registration(Message, frozen=True, kw_only=True):
    """A node's account of itself, sent at start and whenever the tracker has forgotten it."""

    wallet: WalletId
    instance: str
    incarnation: Incarnation
    """Drawn anew at every process start: the newest registration of a node id wins."""
    shard: LayerSpan
    model: ModelCard
    url: str
    """Where tracker and other nodes reach this node: scheme, host and port."""
    layer_tokens_per_s: float
    """From a short real benchmark at start: layers x tokens decoded per second, alone and idle."""
    entry_layers: tuple[int, ...]
    """Layers at which a route may enter the shard now; always has the shard's first."""
    slots: int
    exactness: Exactness = Exactness()
    protocol_version: int = PROTOCOL_VERSION

    @property
    def node_id(self) -> NodeId:
        return make_node_id(wallet=self.wallet, instance=self.instance, shard=self.shard.to_range())


class TrackerGreeting(Message, frozen=True, kw_only=True):
    """What a node asks for before it registers."""

    tracker_key: str
    """The public key that signs tickets, 64 hexadecimal characters."""
    boot: str
    """Drawn anew at every start of the tracker: proofs are made for one run."""
    time_s: float
    """The tracker's clock, in unix seconds."""
    protocol_version: int = PROTOCOL_VERSION


class SharedFile(Message, frozen=True, kw_only=True):
    """What a node says of the model file it can hand on, whole or in part."""

    file_name: str
    byte_count: int
    fingerprint: str
    has_manifest: bool
    """The node has the whole file and has hashed each of its tensors."""


class LayersSuggestion(Message, frozen=True, kw_only=True):
    """Where a new node would help a model most."""

    model_key: ModelKey
    layers: LayerSpan
    reason: str


class RegistrationReply(Message, frozen=True, kw_only=True):
    node_id: NodeId
    heartbeat_period_s: float
    wanted_entry_layers: tuple[int, ...]


class Heartbeat(Message, frozen=True, kw_only=True):
    """Sent every period; also at once when something in it changed."""

    node_id: NodeId
    incarnation: Incarnation
    queue_depth: int
    """Requests accepted by the node and not finished, those being computed included."""
    entry_layers: tuple[int, ...]
    is_draining: bool = False
    active_slots: int = 0
    """Slots with an open session; the rest of ``queue_depth`` waits for one."""
    kv_tokens: int = 0
    """Positions held in the slots: of open sessions, and remembered of ended ones."""
    kv_tokens_max: int = 0


class HeartbeatReply(Message, frozen=True, kw_only=True):
    is_known: bool
    """False: the tracker does not know this incarnation; register again."""
    wanted_entry_layers: tuple[int, ...] = ()
    """Where other nodes' shards end inside this one: cut there, and report it when done."""
    time_s: float | None = None
    """The tracker's clock, in unix seconds."""


class Leave(Message, frozen=True, kw_only=True):
    node_id: NodeId
    incarnation: Incarnation


class PlannedHop(Message, frozen=True, kw_only=True):
    """One hop of the route a request was planned on, as told to the nodes that run it."""

    node_id: NodeId
    url: str
    start_layer: int
    end_layer: int
    wallet: WalletId = WalletId("")
    """Whose node it is: what it proves on links."""

    def layers(self) -> LayerRange:
        return LayerRange(self.start_layer, self.end_layer)


class RoutePlan(Message, frozen=True, kw_only=True):
    """The ``meshnet`` object of a request to a head: which session this is and who runs what.

    The plan travels to every hop of the session, and every hop holds it against the ticket.
    """

    session_id: SessionId
    model_key: ModelKey
    hops: tuple[PlannedHop, ...]
    ticket: str = ""
    """The tracker's signature under all this (``tickets.py``)."""
    token_timeout_s: float | None = None
    """How long the tracker bears a chat without a sign of life. Hops give up on each other sooner, so that it is
    they who say where the silence comes from."""


class Sampling(Message, frozen=True, kw_only=True):
    """How the tail draws tokens, and all it must know of what came before to go on from there.

    The dice at position p are a function of ``seed``, ``choice`` and p only.
    """

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    """0: all tokens."""
    min_p: float = 0.0
    seed: int = 0
    choice: int = 0
    """Which of a request's answers this is: each has dice of its own."""
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repeat_penalty: float = 1.0
    penalty_tokens: int = PENALTY_TOKENS_DEFAULT
    """How many of the latest tokens, those of the prompt included, the three penalties look at."""
    logit_bias: tuple[tuple[int, float], ...] = ()
    """Token ids and what is added to their logits."""
    top_logprobs: int | None = None
    """How many of the likeliest tokens to report beside the drawn one's probability; None: report nothing."""
    grammar: str = ""
    """GBNF; empty: anything goes."""
    prompt_tail: tuple[int, ...] = ()
    """The prompt's last tokens, as many as the penalties look at; empty if there are none."""
    drawn: tuple[int, ...] = ()
    """Tokens of this answer that were drawn before the session began, where it resumes another's."""

    @property
    def has_penalties(self) -> bool:
        return (self.presence_penalty, self.frequency_penalty, self.repeat_penalty) != (0.0, 0.0, 1.0)


class TokenLogprobs(Message, frozen=True, kw_only=True):
    """Natural logarithms of the model's own probabilities: before temperature, penalties and grammar."""

    logprob: float
    top: tuple[tuple[int, float], ...]
    """Token ids and theirs, the likeliest first."""


class Tool(Message, frozen=True, kw_only=True):
    """A function the model may call; ``parameters`` is a JSON schema."""

    name: str
    description: str = ""
    parameters: dict[str, Any] = {}


class ChoiceSoFar(Message, frozen=True, kw_only=True):
    """One answer as far as another head has brought it."""

    token_ids: tuple[int, ...] = ()
    """All that were drawn, the prompt's not among them."""
    logprobs: tuple[TokenLogprobs, ...] = ()
    """Of the last tokens, those whose probabilities the client has not got yet, if it asked for any."""
    is_finished: bool = False
    """Nothing more is to be drawn or said of it."""


class HeadRequest(Message, frozen=True, kw_only=True):
    """Body of a chat or a text completion at a head: an OpenAI request, already normalised.

    ``messages`` (role, text content, and for tools: tool_calls, tool_call_id) make a chat. A text completion has
    ``prompts`` instead, each a text or token ids. Without ``meshnet`` the head plans a route of itself alone.
    """

    messages: list[dict[str, Any]] = []
    prompts: list[str | list[int]] = []
    model: str = ""
    stream: bool = True
    n: int = 1
    """Answers per prompt."""
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repeat_penalty: float = 1.0
    penalty_tokens: int = PENALTY_TOKENS_DEFAULT
    logit_bias: dict[int, float] = {}
    top_logprobs: int | None = None
    seed: int | None = None
    max_tokens: int | None = None
    stop: list[str] = []
    ignore_eos: bool = False
    cache_prompt: bool = True
    """False: compute the whole prompt, whatever the hops still hold of it."""
    grammar: str = ""
    response_schema: dict[str, Any] | None = None
    """The JSON schema the answer must follow."""
    tools: list[Tool] = []
    tool_choice: str = "auto"
    """``auto``, ``required``, or the name of the one tool that must be called."""
    so_far: tuple[ChoiceSoFar, ...] = ()
    """A resumption: the answers that other heads have begun, in order. The head says only what they did not."""
    meshnet: RoutePlan | None = None

    @property
    def resumed_tokens(self) -> int:
        return sum(len(choice.token_ids) for choice in self.so_far)


class HopTiming(Message, frozen=True, kw_only=True):
    """Where one hop's time went, in seconds, summed over all steps of a session (or of one step)."""

    node_id: NodeId
    steps: int = 0
    queue_s: float = 0.0
    """From the step's arrival at the hop until its computation began."""
    compute_s: float = 0.0
    link_s: float = 0.0
    """Between this hop and the next, both ways; 0 at the tail."""


class HeadReport(Message, frozen=True, kw_only=True, omit_defaults=True):
    """The ``meshnet`` object on a head's stream chunks: what the tracker keeps and the client never sees.

    The first one of a stream says how long the prompt is and what is resumed; the chunks that follow until the
    first token say how much of the prompt is computed, which is a sign of life.
    """

    token_ids: tuple[int, ...] = ()
    """Tokens drawn since the previous chunk, of the chunk's choice; text may lag behind them."""
    logprobs: tuple[TokenLogprobs, ...] = ()
    """Of these tokens, where the request asks for any: raw, and before their text may be shown."""
    prompt_tokens: int | None = None
    """All prompts together."""
    resumed_tokens: int = 0
    """Tokens of the request's ``so_far`` that this head goes on from: all of them, or it cannot resume."""
    prefilled_tokens: int = 0
    """Rows of the present answer's prompt, and of what is resumed of it, that every hop has computed."""
    timings: tuple[HopTiming, ...] = ()
    """On the last chunk only: each hop, in route order."""


class PromptTokensDetails(Message, frozen=True, kw_only=True):
    cached_tokens: int = 0
    """Of the prompt's tokens, those that every hop still held and none computed again."""


class Usage(Message, frozen=True, kw_only=True):
    """The prompt counts once, however many answers it gets, and in full, whatever was cached."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails = PromptTokensDetails()


class FunctionDelta(Message, frozen=True, kw_only=True):
    name: str
    arguments: str
    """JSON, as a text."""


class ToolCallDelta(Message, frozen=True, kw_only=True):
    """A tool call; always whole, because only then is it known to be one."""

    index: int
    id: str
    function: FunctionDelta
    type: str = "function"


class Delta(Message, frozen=True, kw_only=True, omit_defaults=True):
    role: str | None = None
    content: str | None = None
    reasoning_content: str | None = None
    tool_calls: list[ToolCallDelta] = []

    @property
    def is_empty(self) -> bool:
        return not (self.content or self.reasoning_content or self.tool_calls)


class TopLogprob(Message, frozen=True, kw_only=True):
    token: str
    logprob: float
    bytes: list[int]


class ContentLogprob(TopLogprob, frozen=True, kw_only=True):
    """A drawn token of the answer. A token may be a part of a character: then only ``bytes`` tells all of it."""

    top_logprobs: list[TopLogprob] = []


class ChoiceLogprobs(Message, frozen=True, kw_only=True):
    content: list[ContentLogprob]


class Choice(Message, frozen=True, kw_only=True):
    index: int
    delta: Delta
    logprobs: ChoiceLogprobs | None = None
    finish_reason: str | None = None


class ChatChunk(Message, frozen=True, kw_only=True):
    """One ``data:`` event of a stream: as a head writes it, and, without ``meshnet``, as a chat's client reads it."""

    id: str
    created: int
    model: str
    choices: list[Choice]
    object: str = "chat.completion.chunk"
    system_fingerprint: str | None = None
    usage: Usage | msgspec.UnsetType = msgspec.UNSET
    meshnet: HeadReport | msgspec.UnsetType = msgspec.UNSET
    error: dict[str, Any] | msgspec.UnsetType = msgspec.UNSET
