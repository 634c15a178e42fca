"""The dashboard in a real browser: it shows what the endpoints say, live, to everybody, and asks no other host."""

from pathlib import Path
from typing import Any

import pytest
from playwright.async_api import Browser, Page, expect

from dashboard.conftest import ARTEFACTS
from dashboard.stage import Stage, stage
from meshnet_tracker.testing import make_card, running_tracker

AXE = Path(__file__).parent / "vendor" / "axe.min.js"
WIDE, PHONE = 1440, 390
# axe is put in by the test, past the page's own policy, in a context of its own.
AXE_RULES = {"runOnly": ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "best-practice"]}

pytestmark = pytest.mark.asyncio(loop_scope="module")


async def violations(page: Page) -> list[tuple[str, list[str]]]:
    """What axe finds, and where."""
    await page.add_script_tag(path=AXE)
    found = await page.evaluate("rules => axe.run(document, rules)", AXE_RULES)
    return [(one["id"], [node["html"] for node in one["nodes"]][:3]) for one in found["violations"]]


async def cells(page: Page, row: str) -> list[str]:
    texts = await page.locator(f"{row} > *").all_inner_texts()
    return [" ".join(text.split()) for text in texts]


async def test_the_routing_panel_shows_what_the_table_says(page: Page, mesh: Stage) -> None:
    routing = await mesh.get("/v1/routing")
    model = next(model for model in routing["models"] if model["candidates"])
    await page.goto(f"{mesh.tracker.url}/#routing")
    panel = page.locator("#routing")

    await expect(panel.get_by_role("heading", name="Routing (learned)", exact=True)).to_be_in_viewport()
    await expect(panel.locator(".config li")).to_have_text(
        ["policy proportional", "explore share 0.3", "alpha 1", "half-life 600 s", "at least 8 tokens a sample"]
    )
    await expect(panel.locator("caption")).to_have_text(f"{model['model']} epoch {model['epoch']}")
    await expect(panel.locator("[data-signature]")).to_have_count(2)
    for arm in model["candidates"]:
        shown = await cells(page, f'tr[data-signature="{arm["signature"]}"]')
        hops = " → ".join(f"{h['node_id'].split('.')[0]}{h['start_layer']}-{h['end_layer']}" for h in arm["hops"])
        assert shown[0].replace(" ", "") == hops.replace(" ", "")
        assert shown[1:4] == [arm["status"], f"{arm['tps']:.1f}", f"{arm['coefficient']:.2f}"]
        assert shown[4].startswith(f"{100 * arm['expected_share']:.0f}")
        assert shown[6] == str(arm["samples"])
        assert float(shown[7]) == pytest.approx(arm["weight"], abs=0.1)
    await expect(panel.get_by_role("img", name="fast queue 5.0 ms, fast compute 50.0 ms")).to_have_count(1)
    for arm in model["candidates"]:
        await expect(panel.get_by_role("img", name=f"last {arm['samples']} samples")).not_to_have_count(0)


async def test_the_overview_says_who_holds_what_and_what_is_missing(page: Page, mesh: Stage) -> None:
    await page.goto(mesh.tracker.url)

    await expect(page.get_by_text("served by 2 routes")).to_be_visible()
    await expect(page.get_by_text("layers 17-29 are held by no ready node")).to_be_visible()
    await expect(page.get_by_role("img", name="layers 0 to 21 of 40")).to_be_visible()
    await expect(page.locator(".nodes .badge")).to_have_text(["ready"] * 3)
    await expect(page.locator("#pulse canvas")).to_be_visible()


async def test_an_empty_mesh_says_what_to_do_next(page: Page) -> None:
    async with running_tracker() as tracker:
        await page.goto(tracker.url)
        await expect(page.locator("#nodes")).to_contain_text(f"meshnet node --model smollm2 --tracker {tracker.url}")
        await expect(page.locator("#routing")).to_contain_text("Nothing to route yet")
        await page.goto(f"{tracker.url}/#calls")
        await expect(page.locator("#call-wall")).to_contain_text("No call yet")
        await page.goto(f"{tracker.url}/#chat")
        await expect(page.locator("#chat-panel")).to_contain_text("No model is served")


async def test_the_wall_is_live_says_why_and_survives_a_reload(page: Page, mesh: Stage) -> None:
    await page.goto(f"{mesh.tracker.url}/#calls")
    rows = page.locator("[data-call]")
    await expect(page.locator(".live")).to_have_text("live")
    before = len((await mesh.get("/v1/calls"))["calls"])
    await expect(rows).to_have_count(before)
    headers = await mesh.chat()
    request_id = headers["x-request-id"]
    row = page.locator(f'[data-call="{request_id}"]')
    await expect(row).to_contain_text("completed")
    await expect(rows).to_have_count(before + 1)

    await row.get_by_role("link").press("Enter")
    detail = page.locator(".detail")
    await expect(detail.get_by_role("heading", name="Call")).to_be_focused()
    await expect(detail.get_by_role("region", name="Candidates at that moment").locator("tbody tr")).to_have_count(2)
    await expect(detail.locator("tr.selected")).to_contain_text("taken")
    await expect(detail.locator(".waterfall")).to_contain_text("500 ms")
    await page.reload()
    await expect(detail).to_contain_text(request_id)
    await expect(rows).to_have_count(before + 1)
    assert "secret" not in await page.content()


async def test_a_running_call_is_seen_running_and_the_wall_can_be_filtered(page: Page, mesh: Stage) -> None:
    for head in mesh.heads.values():
        head.go.clear()
    await page.goto(f"{mesh.tracker.url}/#calls")
    await page.evaluate(
        """fetch('/v1/chat/completions', {method: 'POST', body: JSON.stringify(
            {model: 'tiny', stream: true, messages: [{role: 'user', content: 'hi'}]})}).then(r => r.text()); 0"""
    )
    await expect(page.locator("tbody .badge[data-kind=running]")).to_have_count(1)
    for head in mesh.heads.values():
        head.go.set()
    await expect(page.locator("tbody .badge[data-kind=running]")).to_have_count(0)
    await page.get_by_label("mode").select_option("pinned")
    await expect(page.locator("[data-call]")).to_have_count(1)
    await page.get_by_label("find").fill("no such thing")
    await expect(page.locator("#call-wall")).to_contain_text("No call matches")


async def test_a_chat_shows_its_route_and_a_pin_holds(page: Page, mesh: Stage) -> None:
    arms = next(m for m in (await mesh.get("/v1/routing"))["models"] if m["candidates"])["candidates"]
    await page.goto(f"{mesh.tracker.url}/#chat")
    for arm in arms:
        await page.get_by_label("route").select_option(arm["signature"])
        await page.get_by_label("Your message").fill("Hello")
        await page.get_by_label("Your message").press("Enter")
        await expect(page.locator(".turn").last).to_contain_text("10 tokens")
        await expect(page.locator(".turn").last).to_contain_text("word0 word1")
        assert (await mesh.get("/v1/calls?limit=1"))["calls"][0]["signature"] == arm["signature"]
        assert (await mesh.get("/v1/calls?limit=1"))["calls"][0]["mode"] == "pinned"


async def test_a_conversation_outlives_a_look_at_another_page(page: Page, mesh: Stage) -> None:
    for head in mesh.heads.values():
        head.go.clear()
    await page.goto(f"{mesh.tracker.url}/#chat")
    await page.get_by_label("Your message").fill("Hello")
    await page.get_by_label("Your message").press("Enter")
    await page.get_by_role("link", name="why this route?").click()
    await expect(page.locator(".detail .badge[data-kind=running]")).to_be_visible()
    for head in mesh.heads.values():
        head.go.set()
    await expect(page.locator(".detail .badge[data-kind=completed]")).to_be_visible()
    await page.get_by_role("link", name="Chat", exact=True).click()

    await expect(page.locator(".turn").first).to_contain_text("Hello")
    await expect(page.locator(".turn").last).to_contain_text("word9")
    await expect(page.locator(".turn").last).to_contain_text("10 tokens")


async def test_thoughts_are_shown_apart_and_a_cut_answer_says_so(page: Page, mesh: Stage) -> None:
    for head in mesh.heads.values():
        head.thoughts, head.finish_reason = ("let me see",), "length"
    await page.goto(f"{mesh.tracker.url}/#chat")
    await page.get_by_label("Your message").fill("Hello")
    await page.get_by_role("button", name="Send").click()
    answer = page.locator(".turn").last

    await expect(answer).to_contain_text("Cut off")
    await expect(answer.locator("> .text")).to_have_text("".join(mesh.heads["fast"].pieces))
    await expect(answer.locator("details .text")).to_be_hidden()
    await answer.get_by_text("Thoughts").click()
    await expect(answer.locator("details .text")).to_have_text("let me see")


async def test_the_wall_tells_of_several_answers_of_a_takeover_and_of_errors(page: Page) -> None:
    async with stage() as scene:
        await page.goto(f"{scene.tracker.url}/#calls")
        refused = (await scene.chat(temperature=9))["x-request-id"]
        unserved = (await scene.chat(model="half"))["x-request-id"]
        scene.heads["fast"].breaks_after = 4
        taken_over = (await scene.chat())["x-request-id"]
        several = (await scene.chat(n=2, route=[scene.node_ids["slow"]]))["x-request-id"]

        await expect(page.locator(f'[data-call="{refused}"] .state')).to_have_text("client error temperature")
        await expect(page.locator(f'[data-call="{unserved}"] .state')).to_have_text("node fault no_route")
        await expect(page.locator(f'[data-call="{taken_over}"] [data-label=attempts]')).to_have_text("2")
        await expect(page.locator(f'[data-call="{several}"] [data-label=tokens]')).to_have_text("20 in 2")
        detail = page.locator(".detail")
        for call_id, texts in {
            refused: ["400 at temperature", "is not kept", "before a route was chosen"],
            unserved: ["layers 17-29 are held by no ready node"],
            taken_over: [
                "took over after 4 tokens; drew 6 tokens",
                "broke its connection off",
                "several routes made it",
            ],
            several: ["the request named these nodes", "2, one after the other", "no: it is several answers"],
        }.items():
            await page.goto(f"{scene.tracker.url}/#calls/{call_id}")
            for text in texts:
                await expect(detail).to_contain_text(text)


async def test_a_node_in_front_of_another_server_is_shown_as_the_whole_model(page: Page) -> None:
    async with stage() as scene:
        card = make_card(name="cloud", layer_count=1)
        scene.tracker.register("room", "0-0", url=scene.heads["slow"].url, model=card)
        request_id = (await scene.chat(model="cloud"))["x-request-id"]
        await page.goto(scene.tracker.url)
        await expect(page.get_by_role("img", name="the whole model, behind another server")).to_be_visible()
        await expect(page.locator("#models")).to_contain_text("behind another server, 1 node")
        await page.goto(f"{scene.tracker.url}/#calls")
        await expect(page.locator(f'[data-call="{request_id}"] .chip')).to_have_text("roomall")


async def test_the_keyboard_alone_reads_the_wall(page: Page, mesh: Stage) -> None:
    await page.goto(f"{mesh.tracker.url}/#calls")
    await expect(page.locator("[data-call]").first).to_be_visible()
    await page.keyboard.press("Tab")
    skip = page.get_by_role("link", name="Skip to the content")
    await expect(skip).to_be_focused()
    await expect(skip).to_be_in_viewport()
    for name in ("meshnet, overview", "Overview", "Routing", "Call wall", "Chat"):
        await page.keyboard.press("Tab")
        link = page.get_by_role("link", name=name, exact=True)
        await expect(link).to_be_focused()
        assert await link.evaluate("element => getComputedStyle(element).outlineStyle") == "solid", "no focus ring"
    await skip.focus()
    await page.keyboard.press("Enter")
    await expect(page.locator("main")).to_be_focused()
    assert page.url.endswith("#calls"), "the page is still the call wall"

    await page.keyboard.press("Tab")
    await expect(page.get_by_label("find")).to_be_focused()
    first = page.locator("[data-call]").first.get_by_role("link")
    while not await first.evaluate("element => element === document.activeElement"):
        await page.keyboard.press("Tab")
    await page.keyboard.press("Enter")
    await expect(page.locator("#detail-title")).to_be_focused()
    await page.keyboard.press("Escape")
    await expect(page.locator(".detail")).to_have_count(0)
    await expect(first).to_be_focused()


async def test_nothing_moves_for_those_who_do_not_want_it(browser: Browser, mesh: Stage) -> None:
    moving = """() => document.getAnimations().length
        + [...document.querySelectorAll('*')].filter(e => getComputedStyle(e).transitionDuration !== '0s').length"""
    counts = {}
    for wish in ("no-preference", "reduce"):
        async with await browser.new_context(reduced_motion=wish) as context, await context.new_page() as page:
            await page.goto(f"{mesh.tracker.url}/#calls")
            await expect(page.locator(".live")).to_have_text("live")
            calls = await page.evaluate(moving)
            await page.goto(f"{mesh.tracker.url}/#overview")
            await expect(page.locator(".meter").first).to_be_visible()
            counts[wish] = (calls > 0, await page.evaluate(moving) > 0)

    assert counts == {"no-preference": (True, True), "reduce": (False, False)}


async def test_a_dead_tracker_is_told_and_the_last_figures_stay(browser: Browser) -> None:
    async with stage() as scene, await browser.new_page() as page:
        await page.goto(scene.tracker.url)
        await expect(page.get_by_text("served by 2 routes")).to_be_visible()
        await page.context.set_offline(True)
        await expect(page.get_by_role("alert").first).to_contain_text("Is it still running?")
        await expect(page.get_by_text("served by 2 routes")).to_be_visible()


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("address", ["#overview", "#calls/{id}", "#chat"])
async def test_axe_finds_nothing_and_pages_fit_a_phone(
    browser: Browser, mesh: Stage, scheme: Any, address: str
) -> None:
    latest = (await mesh.get("/v1/calls"))["calls"][3]["id"]
    name = address[1:].partition("/")[0]
    for width, height in ((WIDE, 900), (PHONE, 844)):
        context = await browser.new_context(
            color_scheme=scheme, bypass_csp=True, viewport={"width": width, "height": height}
        )
        page = await context.new_page()
        await page.goto(f"{mesh.tracker.url}/{address.format(id=latest)}")
        await expect(page.locator("main table, main textarea").first).to_be_visible()
        ARTEFACTS.mkdir(parents=True, exist_ok=True)
        await page.screenshot(path=ARTEFACTS / f"{name}-{scheme}-{width}.png", full_page=True)
        assert await page.evaluate("document.documentElement.scrollWidth <= innerWidth"), "the page scrolls sideways"
        assert await violations(page) == []
        await context.close()


async def test_the_page_may_load_nothing_from_elsewhere(mesh: Stage) -> None:
    async with mesh.http.get(mesh.tracker.url) as page, mesh.http.get(f"{mesh.tracker.url}/ui/main.js") as module:
        policy = page.headers["content-security-policy"]
        assert (page.status, module.status) == (200, 200)
    assert policy.startswith("default-src 'none'; script-src 'self';")
    assert "unsafe" not in policy
    async with mesh.http.get(f"{mesh.tracker.url}/ui/absent.js") as absent:
        assert (absent.status, (await absent.json())["error"]["code"]) == (404, "unknown_url")
