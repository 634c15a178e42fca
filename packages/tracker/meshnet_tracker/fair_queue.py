"""A short queue that is fair between clients: whoever asks most waits for itself.

Clients take turns, each in the order of its own requests. When the queue is full, the newest request of the client
that has most in it makes room for one of a client that has fewer; a client that has most already is refused itself.
So a flood costs its sender, and hardly anybody else. Pure: who is a client, and what a request is, says the caller.
"""

from collections import OrderedDict, deque
from collections.abc import Hashable
from typing import Generic, TypeVar

R = TypeVar("R", bound=Hashable)


class FairQueue(Generic[R]):
    """Requests ``R`` of clients known by a text."""

    def __init__(self, *, count_max: int) -> None:
        self._count_max = count_max
        self._count = 0
        self._clients: OrderedDict[str, deque[R]] = OrderedDict()
        """In the order of their turns."""

    def __len__(self) -> int:
        return self._count

    def enter(self, client: str, request: R, *, is_again: bool = False) -> R | None:
        """Put the request at its client's end; one that had its turn in vain goes to the front.

        Who is refused for it: another's request, itself, or nobody.
        """
        refused: R | None = None
        if self._count >= self._count_max:
            greediest = max(self._clients, key=lambda name: len(self._clients[name]))
            if len(self._clients[greediest]) <= len(self._clients.get(client, ())) + 1:
                return request
            refused = self._clients[greediest][-1]
            self.leave(greediest, refused)
        requests = self._clients.setdefault(client, deque())
        self._count += 1
        if is_again:
            requests.appendleft(request)
            self._clients.move_to_end(client, last=False)
        else:
            requests.append(request)
        return refused

    def first(self) -> R | None:
        """Whose turn it is."""
        return next(iter(self._clients.values()))[0] if self._clients else None

    def take(self) -> R | None:
        """Whose turn it is; its client's next turn comes after everybody else's."""
        if not self._clients:
            return None
        client, requests = self._clients.popitem(last=False)
        self._count -= 1
        request = requests.popleft()
        if requests:
            self._clients[client] = requests
        return request

    def leave(self, client: str, request: R) -> None:
        """The request has given up, or had its turn. Not to be in the queue any more is no error."""
        requests = self._clients.get(client)
        if requests is None or request not in requests:
            return
        requests.remove(request)
        self._count -= 1
        if not requests:
            del self._clients[client]
