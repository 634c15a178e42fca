"""A person in front of a guarded tracker: the key once, then the dashboard as always."""

from typing import Any

import pytest
from playwright.async_api import Browser, Page, expect

from dashboard.stage import stage
from dashboard.test_pages import violations

pytestmark = pytest.mark.asyncio(loop_scope="module")
KEYS: dict[str, Any] = {"api_keys": ("sk-client-0123",), "admin_keys": ("sk-owner-0123",)}


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("address", ["login", "login?failed=1"])
async def test_axe_finds_nothing_on_the_login_page(browser: Browser, scheme: Any, address: str) -> None:
    async with stage(**KEYS) as scene:
        context = await browser.new_context(
            color_scheme=scheme, bypass_csp=True, viewport={"width": 390, "height": 844}
        )
        async with context, await context.new_page() as page:
            await page.goto(f"{scene.tracker.url}/{address}")
            await expect(page.get_by_label("Admin key")).to_be_visible()
            assert await violations(page) == []


async def test_the_dashboard_asks_for_the_key_once_and_says_when_it_is_the_wrong_one(page: Page) -> None:
    async with stage(**KEYS) as scene:
        await page.goto(scene.tracker.url)
        await expect(page).to_have_url(f"{scene.tracker.url}/login")
        await expect(page.get_by_role("alert")).to_have_count(0)
        await page.get_by_label("Admin key").fill("sk-client-0123")
        await page.get_by_role("button", name="Log in").click()
        await expect(page.get_by_role("alert")).to_contain_text("not the tracker's admin key")
        await expect(page.get_by_label("Admin key")).to_be_focused()

        await page.get_by_label("Admin key").fill("sk-owner-0123")
        await page.get_by_role("button", name="Log in").click()
        await expect(page.get_by_role("heading", name="Routing (learned)")).to_be_visible()
        await page.goto(f"{scene.tracker.url}/#calls")
        await expect(page.get_by_role("heading", name="Call wall").first).to_be_visible()

        await page.get_by_role("button", name="Log out").click()
        await expect(page).to_have_url(f"{scene.tracker.url}/login")
        await page.goto(scene.tracker.url)
        await expect(page).to_have_url(f"{scene.tracker.url}/login")


async def test_on_a_phone_all_of_the_bar_can_be_seen(page: Page) -> None:
    await page.set_viewport_size({"width": 390, "height": 844})
    async with stage(**KEYS, show_texts=True) as scene:
        await page.goto(scene.tracker.url)
        await page.get_by_label("Admin key").fill("sk-owner-0123")
        await page.get_by_role("button", name="Log in").click()
        banner = page.get_by_role("banner")
        await expect(banner.get_by_role("button", name="Log out")).to_be_visible()
        parts = [*await banner.get_by_role("link").all(), *await banner.get_by_role("button").all()]
        boxes = [await part.bounding_box() for part in [*parts, banner.get_by_text("texts are shown")]]
    assert len(boxes) == 8
    for index, box in enumerate(boxes):
        assert box is not None
        assert box["x"] + box["width"] <= 390
        for other in boxes[index + 1 :]:
            assert other is not None
            apart = box["x"] + box["width"] <= other["x"] or other["x"] + other["width"] <= box["x"]
            assert apart or box["y"] + box["height"] <= other["y"] or other["y"] + other["height"] <= box["y"]


async def test_texts_are_shown_if_the_owner_wants_it_and_the_page_says_so(page: Page) -> None:
    async with stage(show_texts=True) as scene:
        request_id = (await scene.chat())["x-request-id"]
        await page.goto(f"{scene.tracker.url}/#calls/{request_id}")
        await expect(page.get_by_role("banner")).to_contain_text("texts are shown")
        detail = page.get_by_role("complementary")
        await expect(detail).to_contain_text("a secret question")
        await expect(detail).to_contain_text("word0 word1")


async def test_without_the_option_no_text_is_shown_and_nobody_has_to_log_out(page: Page) -> None:
    async with stage() as scene:
        request_id = (await scene.chat())["x-request-id"]
        await page.goto(f"{scene.tracker.url}/#calls/{request_id}")
        await expect(page.get_by_role("complementary")).to_contain_text("Where the time went")
        await expect(page.get_by_text("secret question")).to_have_count(0)
        await expect(page.get_by_text("texts are shown")).to_have_count(0)
        await expect(page.get_by_role("button", name="Log out")).to_have_count(0)
