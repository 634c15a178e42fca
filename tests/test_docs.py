"""What the documents say is there, is there."""

import re
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
DOCUMENTS = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
COMMANDS = (
    *("tracker", "node", "status", "routes", "calls", "chat", "demo", "bench routing"),
    *("model list", "model pull", "model inspect", "model prune"),
)
FLAGS_OF_OTHERS = {"--extra", "--group", "--reinstall-package", "--no-binary-package", "--locked"}


@cache
def help_text() -> str:
    command = [sys.executable, "-m", "meshnet_cli"]
    environment = {"COLUMNS": "300", "NO_COLOR": "1", "PATH": ""}
    pages = [
        subprocess.run(
            [*command, *name.split(), "--help"], capture_output=True, text=True, check=True, env=environment
        ).stdout
        for name in COMMANDS
    ]
    return "\n".join(pages)


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_between_documents_lead_somewhere(document: Path) -> None:
    targets = re.findall(r"\]\((?!https?:)([^)#]+)", document.read_text())

    assert [target for target in targets if not (document.parent / target).exists()] == []


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_flags_and_variables_in_the_documents_exist(document: Path) -> None:
    text = document.read_text()
    flags = set(re.findall(r"(?<![\w-])--[a-z][a-z-]+", text)) - FLAGS_OF_OTHERS
    variables = set(re.findall(r"MESHNET_[A-Z_]+", text))

    flags_of_benchmarks = {
        flag for script in (ROOT / "benchmarks").glob("*.py") for flag in re.findall(r"--[a-z-]+", script.read_text())
    }
    known = set(re.findall(r"--[a-z][a-z-]+", help_text())) | flags_of_benchmarks
    assert flags - known == set()
    assert variables - set(re.findall(r"MESHNET_[A-Z_]+", help_text())) == set()


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_files_named_in_the_documents_exist(document: Path) -> None:
    named = set(re.findall(r"`((?:packages|docs|benchmarks|tests)/[\w/.-]+)`", document.read_text()))
    named |= set(re.findall(r"python (benchmarks/\w+\.py)", document.read_text()))

    assert {name for name in named if not (ROOT / name).exists()} == set()


def test_the_four_knobs_have_their_names_and_defaults() -> None:
    from meshnet_tracker.settings import TrackerSettings

    knobs = {
        "--route-explore-share": ("MESHNET_ROUTE_EXPLORE_SHARE", "0.3"),
        "--route-weight-alpha": ("MESHNET_ROUTE_WEIGHT_ALPHA", "1.0"),
        "--route-stats-half-life": ("MESHNET_ROUTE_STATS_HALF_LIFE", "600.0"),
    }
    for flag, (variable, default) in knobs.items():
        line = next(line for line in help_text().splitlines() if flag in line)
        described = help_text()[help_text().index(line) :][:900]
        assert variable in described
        assert f"default: {default}" in described
    assert "MESHNET_ROUTE_MIN_SAMPLE_TOKENS" in help_text()
    assert TrackerSettings().route_min_sample_tokens == 8
