"""How long somebody's silence is borne: only the time counts in which we were awake to hear.

A process that stands still (a paused virtual machine, a closed laptop, SIGSTOP) finds on waking that every deadline
has passed, and would blame everybody else for its own sleep. No clock of an operating system leaves all of these out.
So silence is measured by *looks*, ``LOOK_S_MAX`` apart at most: a look that comes much later than it was due was slept
through, and the time before it does not count. What arrived meanwhile so gets another moment to be read.

Pure: told the time. ``awake_timeout.py`` is the timeout made of it.
"""

LOOK_S_MIN, LOOK_S_MAX = 0.001, 1.0
LATE_S_MAX = 0.5
"""A look may be so late without anybody having slept: a busy machine, a long step of the event loop."""
BODY_SILENCE_S_MAX = 30.0
BODY_BYTES_PER_S_MIN = 4096
"""Of a request's body. Who sends more slowly, but for a pause of half a minute, is no client but holds a place."""


class AwakeTime:
    """Seconds in which somebody looked often enough. Times are those of one monotonic clock."""

    def __init__(self, now: float) -> None:
        self.seconds = 0.0
        self.has_slept = False
        """Whether we ever stood still."""
        self._looked_at = now

    def look(self, now: float) -> float:
        """Count the time since the last look, unless it was slept through. All seconds so far."""
        passed_s = now - self._looked_at
        self._looked_at = now
        if passed_s > LOOK_S_MAX + LATE_S_MAX:
            self.has_slept = True
        else:
            self.seconds += passed_s
        return self.seconds

    def go_on(self, now: float) -> None:
        """Nobody has wanted to look since the last time; nor does that time count."""
        self._looked_at = now


class Patience:
    """With one silence; one of 0 s is over at once."""

    def __init__(self, seconds: float, now: float) -> None:
        self.seconds = seconds
        self._full_s = seconds
        self._awake = AwakeTime(now)
        self._began_at = 0.0

    @property
    def passed_s(self) -> float:
        return self._awake.seconds - self._began_at

    @property
    def is_over(self) -> bool:
        return self.passed_s >= self.seconds

    @property
    def next_look_s(self) -> float:
        """How soon to look again."""
        return 0.0 if self.is_over else min(max(self.seconds - self.passed_s, LOOK_S_MIN), LOOK_S_MAX)

    @property
    def has_slept(self) -> bool:
        """Whether we stood still, in all that time."""
        return self._awake.has_slept

    def look(self, now: float) -> None:
        self._awake.look(now)

    def go_on(self, now: float) -> None:
        """Nobody has waited since the last look: that time was nobody's silence."""
        self._awake.go_on(now)

    def earn(self, seconds: float) -> None:
        """Some of what was waited for came: so much longer, but never longer than at first."""
        self.seconds = min(self.seconds + seconds, self.passed_s + self._full_s)

    def renew(self, now: float) -> None:
        """There was a sign of life."""
        self._began_at = self._awake.look(now)
