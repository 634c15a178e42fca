"""Issues tickets, and passes to read model files: what nodes go by (``meshnet_protocol/tickets.py``)."""

import msgspec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from meshnet_protocol.messages import HeadRequest, RoutePlan
from meshnet_protocol.proofs import public_key_text
from meshnet_protocol.tickets import Pass, Ticket, sign

OPENING_S_MAX = 60.0
"""From choosing a route to the first session's opening at the last hop: queues and slow links included."""
ANSWER_S_MAX = 600.0
"""More for each further answer: they are drawn one after the other, each in a session of its own."""
DRAWS_MAX = 1_000_000
"""Where the client sets no limit, the context does."""
PASS_S = 600
"""A reader that needs longer asks again."""


class TicketOffice:
    """Owns the tracker's signing key."""

    def __init__(self, key: Ed25519PrivateKey) -> None:
        self._key = key
        self.public_key = public_key_text(key)

    def issue(self, plan: RoutePlan, request: HeadRequest, *, now: float) -> RoutePlan:
        """The plan with its ticket. ``now``: unix seconds of the clock that nodes go by."""
        sessions = request.n * max(1, len(request.prompts))
        ticket = Ticket(
            session=plan.session_id,
            model=plan.model_key,
            hops=plan.hops,
            sessions=sessions,
            draws=DRAWS_MAX if request.max_tokens is None else request.max_tokens,
            exp=int(now + OPENING_S_MAX + ANSWER_S_MAX * (sessions - 1)),
        )
        return msgspec.structs.replace(plan, ticket=sign(ticket, self._key))

    def issue_pass(self, *, now: float) -> str:
        """For one who may read model files."""
        return sign(Pass(reads="model files", exp=int(now + PASS_S)), self._key)
