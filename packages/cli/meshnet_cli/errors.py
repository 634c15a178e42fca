"""What the command line itself can be wrong about.

CommandError    shown as one line; the command exits with 2
"""


class CommandError(Exception):
    """A mistake a person can mend; the message says how."""
