"""A real Chromium on a staged mesh. Without Chromium these tests are skipped; where ``CI`` is true, they fail."""

import os
import shutil
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from playwright.async_api import Browser, Page, async_playwright

from dashboard.stage import Stage, play, stage

CHROMIUM = shutil.which("chromium")
ARGUMENTS = [
    "--no-sandbox",
    "--disable-gpu",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
ARTEFACTS = Path(__file__).parent.parent.parent / "artefacts" / "dashboard"


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def browser() -> AsyncIterator[Browser]:
    if CHROMIUM is None:
        reason = "no chromium on this machine (Debian: apt install chromium)"
        if os.environ.get("CI") == "true":
            pytest.fail(reason)
        pytest.skip(reason)
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=CHROMIUM, args=ARGUMENTS)
        yield browser
        await browser.close()


@pytest_asyncio.fixture(loop_scope="module")
async def mesh() -> AsyncIterator[Stage]:
    """Two proven routes, a model that lacks layers, and calls of several kinds."""
    async with stage() as scene:
        await play(scene)
        yield scene


@pytest_asyncio.fixture(loop_scope="module")
async def page(browser: Browser) -> AsyncIterator[Page]:
    """A page that must not complain: console errors, exceptions, and requests to other hosts fail the test."""
    page = await browser.new_page(viewport={"width": 1440, "height": 900})
    page.set_default_timeout(8000)
    complaints: list[str] = []
    hosts: set[str] = set()
    page.on("console", lambda message: complaints.append(message.text) if message.type == "error" else None)
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on("request", lambda request: hosts.add(request.url.split("/")[2]))
    yield page
    assert complaints == []
    assert all(host.startswith("127.0.0.1:") for host in hosts), hosts
