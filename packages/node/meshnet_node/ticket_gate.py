"""What a node lets into its engine: sessions that a ticket of its tracker allows, each once.

The check happens when a session opens, never per step: a signature, the plan held against it word for word, and
whether this session was opened before. A session that found no slot further down may be tried again; one that
was open on all hops from here on is spent.

A node that only its own machine can reach also takes routes of itself alone without a ticket, so that its owner
can talk to it directly.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from meshnet_node.errors import ExpiredTicketError, TicketError
from meshnet_node.tracker_trust import TrackerTrust
from meshnet_protocol.errors import ExpiredError, RemoteProtocolError
from meshnet_protocol.ids import SessionId
from meshnet_protocol.messages import RoutePlan
from meshnet_protocol.tickets import Ticket, check_ticket, read_signed

UNLIMITED = 2**62
SPENT_MAX = 200_000


@dataclass(slots=True)
class Permit:
    """What one session may do."""

    draws: int = UNLIMITED
    """How many tokens it may draw."""
    is_spent: bool = False
    """Set it once the session is open on this hop and all later ones."""


class TicketGate:
    """Decides; told of everything it decides by."""

    def __init__(self, trust: TrackerTrust, *, allows_direct: bool) -> None:
        self._trust = trust
        self._allows_direct = allows_direct
        self._opening: set[SessionId] = set()
        self._spent: dict[SessionId, int] = {}
        """Sessions that were open, and until when their tickets last: as long as they could be used again."""

    @contextmanager
    def claim(self, plan: RoutePlan) -> Iterator[Permit]:
        """Hold this while the session is open. Raises TicketError if it must not open."""
        if self._allows_direct and not plan.ticket and len(plan.hops) == 1:
            yield Permit()
            return
        ticket = self._check(plan)
        self._opening.add(plan.session_id)
        permit = Permit(draws=ticket.draws)
        try:
            yield permit
        finally:
            self._opening.discard(plan.session_id)
            if permit.is_spent:
                self._spend(plan.session_id, ticket)

    def _check(self, plan: RoutePlan) -> Ticket:
        if not plan.ticket:
            raise TicketError("this node runs nothing without a ticket: send chats to the tracker")
        if self._trust.key is None:
            raise TicketError("this node has not met its tracker yet, and cannot check tickets")
        try:
            ticket = read_signed(plan.ticket, self._trust.key, Ticket)
            check_ticket(ticket, plan, now=self._trust.now())
        except ExpiredError as error:
            raise ExpiredTicketError(str(error)) from error
        except RemoteProtocolError as error:
            raise TicketError(str(error)) from error
        if plan.session_id in self._opening or plan.session_id in self._spent:
            raise TicketError(f"session {plan.session_id} was opened before: a ticket is good once per answer")
        return ticket

    def _spend(self, session_id: SessionId, ticket: Ticket) -> None:
        now = self._trust.now()
        while self._spent:
            oldest, ends_at = next(iter(self._spent.items()))
            if ends_at >= now and len(self._spent) < SPENT_MAX:
                break
            del self._spent[oldest]
        self._spent[session_id] = ticket.exp
