"""Real processes and real faults. ``make chaos`` runs the long storm."""

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--storm-chats", type=int, default=40, help="Chats of the storm; make chaos asks for hundreds.")
    parser.addoption("--storm-seed", type=int, default=1, help="What happens when.")
