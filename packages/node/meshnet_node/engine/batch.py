"""What to compute next: a pure choice among the rows that are ready.

Rules, in this order:

1. Decode steps (one row) and prefill (more rows) take turns when both wait, decode steps first: a long prompt
   never stops others for longer than one piece of it, and a crowd of decode steps never stops a prompt.
2. The decode steps of a group (``groups.py``) that wait at one segment go into one batch. The group with the
   longest waiting step goes first. Among its segments the earliest does, so that its sessions catch up with those
   waiting behind it and later segments see fuller batches.
3. A prompt is cut into pieces as it enters the shard: large ones when it is alone, small ones when there are
   other sessions to keep flowing. The longest waiting prompt goes first, one session at a time, because rows
   of unequal counts do not share a batch.
"""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

SHARED_PIECE_ROWS_MAX = 32
"""Most rows of a prompt's piece while others are generating: some 0.1 to 0.2 s on a slow machine."""


@dataclass(frozen=True, slots=True, order=True)
class Stage:
    """Where rows wait: a segment of a generation of segments."""

    generation: int
    segment: int


@dataclass(frozen=True, slots=True)
class ReadyRows:
    """Rows of one session that could be computed now."""

    slot: int
    stage: Stage
    row_count: int
    is_cut: bool
    """False at the session's first segment: a smaller piece may be taken. True further on: all or nothing."""
    turn: int
    """Counts up as sessions come with a step and as they have had their share: the lowest has waited longest."""


@dataclass(frozen=True, slots=True)
class Batch:
    """What to run in one decode."""

    stage: Stage
    slots: tuple[int, ...]
    row_count: int
    """Of each slot."""

    @property
    def is_prefill(self) -> bool:
        return self.row_count > 1


def choose_batch(
    ready: Sequence[ReadyRows],
    *,
    rows_max: int,
    after_decode: bool,
    session_count: int = 1,
    group_of: Callable[[int], Collection[int]],
) -> Batch | None:
    """The next decode; None if nothing is ready.

    ``after_decode``: the previous batch was of decode steps, so a waiting prompt has its turn.
    ``session_count``: open sessions; with more than one, prompts enter in small pieces.
    ``group_of``: the slots whose decode steps go with a slot's, itself among them.
    """
    if len(ready) == 1 and ready[0].row_count == 1:  # nothing to choose: one user's steps
        return Batch(ready[0].stage, (ready[0].slot,), 1)
    decode_steps = [rows for rows in ready if rows.row_count == 1]
    prompts = [rows for rows in ready if rows.row_count > 1]
    if prompts and (after_decode or not decode_steps):
        return _prefill(min(prompts, key=lambda rows: rows.turn), rows_max, session_count)
    if decode_steps:
        return _decode(decode_steps, rows_max, group_of)
    return None


def _prefill(rows: ReadyRows, rows_max: int, session_count: int) -> Batch:
    if rows.is_cut:
        return Batch(rows.stage, (rows.slot,), rows.row_count)
    limit = min(rows_max, SHARED_PIECE_ROWS_MAX) if session_count > 1 else rows_max
    return Batch(rows.stage, (rows.slot,), min(rows.row_count, limit))


def _decode(steps: Sequence[ReadyRows], rows_max: int, group_of: Callable[[int], Collection[int]]) -> Batch:
    longest_waiting = min(steps, key=lambda rows: rows.turn)
    generation, group = longest_waiting.stage.generation, group_of(longest_waiting.slot)
    together = [rows for rows in steps if rows.slot in group and rows.stage.generation == generation]
    stage = min(rows.stage for rows in together)
    at_stage = sorted((rows for rows in together if rows.stage == stage), key=lambda rows: rows.turn)
    return Batch(stage, tuple(sorted(rows.slot for rows in at_stage[:rows_max])), 1)
