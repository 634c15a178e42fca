"""House rules that a machine can check."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
FILE_LINES_MAX = 400
FUNCTION_LINES_MAX = 70
NAMES_THAT_SAY_NOTHING = {"utils.py", "helpers.py", "manager.py", "common.py", "misc.py"}

SOURCES = sorted(path for path in (ROOT / "packages").rglob("*.py") if ".venv" not in path.parts)


def functions(tree: ast.AST) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    return (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_source_file_is_one_idea_of_readable_size(path: Path) -> None:
    text = path.read_text()
    tree = ast.parse(text)

    assert path.name not in NAMES_THAT_SAY_NOTHING
    assert len(text.splitlines()) <= FILE_LINES_MAX
    assert not text.strip() or path.name == "__main__.py" or ast.get_docstring(tree), "a module says what it owns"
    # A command's signature is its list of options, and may be as long as that list: the body is what counts.
    lengths = {f.name: (f.end_lineno or 0) - f.body[0].lineno + 1 for f in functions(tree)}
    assert {name: lines for name, lines in lengths.items() if lines > FUNCTION_LINES_MAX} == {}


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_task_has_a_parent_and_no_work_is_left_undone(path: Path) -> None:
    text = path.read_text()

    assert "asyncio.create_task(" not in text
    assert "ensure_future(" not in text
    assert "TODO" not in text
    assert "FIXME" not in text
