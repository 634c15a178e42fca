"""Who may call what: decided from headers alone, then over real HTTP."""

import json
from collections.abc import Mapping
from typing import Any

import aiohttp
import pytest

from meshnet_tracker.access import (
    LOGIN_COOKIE,
    LOGIN_S,
    Access,
    Refusal,
    Role,
    Surface,
    client_name,
    surface_of,
)
from meshnet_tracker.errors import SettingsError
from meshnet_tracker.settings import TrackerSettings
from meshnet_tracker.testing import RunningTracker, running_head, running_tracker

CLIENT_KEY, ADMIN_KEY = "sk-client-0123", "sk-admin-0123"
GUARDED: Mapping[str, Any] = {"api_keys": (CLIENT_KEY,), "admin_keys": (ADMIN_KEY,)}
NOW = 1_800_000_000.0


def bearer(key: str) -> dict[bytes, bytes]:
    return {b"authorization": f"Bearer {key}".encode()}


def role(access: Access, headers: dict[bytes, bytes], *, is_own_page: bool = True, now: float = NOW) -> Role:
    return access.role_of(headers, is_own_page=is_own_page, now=now)


@pytest.mark.parametrize(
    ("path", "surface"),
    [
        ("/health", Surface.PUBLIC),
        ("/ui/main.js", Surface.PUBLIC),
        ("/login", Surface.PUBLIC),
        ("/v1/chat/completions", Surface.CLIENT),
        ("/v1/models/org/name", Surface.CLIENT),
        ("/v1/nodes/register", Surface.NODE),
        ("/v1/nodes", Surface.MEMBER),
        ("/v1/nodes/suggest", Surface.MEMBER),
        ("/v1/store/key/file", Surface.MEMBER),
        ("/", Surface.ADMIN),
        ("/metrics", Surface.ADMIN),
        ("/openapi.json", Surface.ADMIN),
        ("/v1/whatever/comes/later", Surface.ADMIN),
        ("/uix", Surface.ADMIN),
    ],
)
def test_what_nobody_named_is_the_owners(path: str, surface: Surface) -> None:
    assert surface_of(path) is surface


def test_without_keys_everybody_is_the_owner() -> None:
    assert role(Access(), {}) is Role.ADMIN


@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        ({}, Role.NOBODY),
        (bearer(CLIENT_KEY), Role.CLIENT),
        (bearer(ADMIN_KEY), Role.ADMIN),
        ({b"authorization": f"bearer   {CLIENT_KEY} ".encode()}, Role.CLIENT),
        (bearer(CLIENT_KEY.upper()), Role.NOBODY),
        (bearer(""), Role.NOBODY),
        ({b"authorization": CLIENT_KEY.encode()}, Role.NOBODY),
        ({b"authorization": f"Basic {CLIENT_KEY}".encode()}, Role.NOBODY),
        ({b"authorization": b"Bearer \xff\x00"}, Role.NOBODY),
    ],
)
def test_a_key_opens_what_it_is_for(headers: dict[bytes, bytes], expected: Role) -> None:
    assert role(Access(**GUARDED), headers) is expected


def test_api_keys_without_an_admin_key_close_the_owners_part() -> None:
    access = Access(api_keys=(CLIENT_KEY,))
    assert access.refusal(Surface.ADMIN, Role.CLIENT) is Refusal.CLOSED
    assert access.refusal(Surface.CLIENT, Role.CLIENT) is None


def test_a_login_lasts_for_hours_belongs_to_own_pages_and_to_this_key() -> None:
    access = Access(**GUARDED)
    assert access.log_in(CLIENT_KEY.encode(), NOW) is None
    assert access.log_in(b"", NOW) is None
    value = access.log_in(ADMIN_KEY.encode(), NOW)
    assert value is not None
    cookie = {b"cookie": f"other=1; {LOGIN_COOKIE}={value}".encode()}

    assert role(access, cookie, now=NOW + LOGIN_S) is Role.ADMIN
    assert role(access, cookie, now=NOW + LOGIN_S + 1) is Role.NOBODY
    assert role(access, cookie, is_own_page=False) is Role.NOBODY
    assert role(Access(admin_keys=("another-admin-key",)), cookie) is Role.NOBODY
    assert ADMIN_KEY not in value


@pytest.mark.parametrize("value", ["", ".", "1.", "9999999999.", "9999999999.0" * 3, "²." + "0" * 64, "9" * 40 + ".00"])
def test_a_made_up_cookie_is_nobodys(value: str) -> None:
    assert role(Access(**GUARDED), {b"cookie": f"{LOGIN_COOKIE}={value}".encode()}) is Role.NOBODY


def test_a_clients_name_tells_keys_apart_and_gives_none_away() -> None:
    assert client_name(bearer(CLIENT_KEY)) != client_name(bearer(ADMIN_KEY))
    assert client_name({}) == ""
    assert CLIENT_KEY not in client_name(bearer(CLIENT_KEY))


async def ask(
    tracker: RunningTracker, path: str, key: str = "", *, method: str = "GET", **headers: str
) -> tuple[int, str, Mapping[str, str]]:
    sent = {name.replace("_", "-"): value for name, value in headers.items()}
    sent |= {"authorization": f"Bearer {key}"} if key else {}
    body = json.dumps({"messages": [{"role": "user", "content": "Hi"}]}) if method == "POST" else None
    async with (
        aiohttp.ClientSession() as http,
        http.request(method, f"{tracker.url}{path}", data=body, headers=sent, allow_redirects=False) as response,
    ):
        return response.status, await response.text(), response.headers


@pytest.mark.parametrize(
    "path",
    [
        "/v1/nodes",
        "/v1/routing",
        "/v1/routing/history",
        "/v1/events",
        "/v1/overview",
        "/v1/calls",
        "/v1/calls/stream",
        "/v1/calls/x",
        "/metrics",
        "/openapi.json",
        "/nope",
        "//v1//nodes/",
        "/v1/%6eodes",
    ],
)
async def test_the_owners_part_needs_the_owners_key(path: str) -> None:
    async with running_tracker(**GUARDED) as tracker:
        stranger, answer, headers = await ask(tracker, path)
        wrong, _, _ = await ask(tracker, path, "sk-wrong-0123")
        client, client_answer, _ = await ask(tracker, path, CLIENT_KEY)

    error = json.loads(answer)["error"]
    assert (stranger, wrong, client) == (401, 401, 403)
    assert set(error) == {"message", "type", "param", "code"}
    assert error["code"] == "invalid_api_key"
    assert headers["www-authenticate"] == "Bearer"
    assert headers["x-request-id"].startswith("req_")
    assert json.loads(client_answer)["error"]["code"] == "admin_key_needed"


async def test_chats_and_models_need_a_key_that_openai_clients_can_send() -> None:
    async with running_tracker(**GUARDED) as tracker, running_head() as head:
        tracker.register("whole", "0-39", url=head.url)
        page = "https://chat.example"
        preflight, _, _ = await ask(tracker, "/v1/chat/completions", method="OPTIONS", Origin=page)
        refused, answer, headers = await ask(tracker, "/v1/chat/completions", method="POST", Origin=page)
        models, _, _ = await ask(tracker, "/v1/models")
        chats = [
            (await ask(tracker, "/v1/chat/completions", key, method="POST", Origin=page))[0]
            for key in (CLIENT_KEY, ADMIN_KEY)
        ]
        health, told, _ = await ask(tracker, "/health")
        _, told_to_client, _ = await ask(tracker, "/health", CLIENT_KEY)

    assert (preflight, refused, models, chats, health) == (204, 401, 401, [200, 200], 200)
    assert json.loads(answer)["error"]["code"] == "invalid_api_key"
    assert headers["access-control-allow-origin"] == "*", "a page must be able to read why it was refused"
    assert len(head.requests) == 2
    assert json.loads(told) == {"status": "ok", "ready": True}
    assert json.loads(told_to_client)["models"] == ["tiny"]


async def test_a_person_logs_in_by_a_form_and_a_script_cannot_steal_it() -> None:
    async with (
        running_tracker(**GUARDED) as tracker,
        aiohttp.ClientSession(cookie_jar=aiohttp.CookieJar(unsafe=True)) as http,
    ):
        async with http.get(f"{tracker.url}/") as response:
            assert str(response.url) == f"{tracker.url}/login"
            assert "<form" in await response.text()
        async with http.post(f"{tracker.url}/login", data={"key": "wrong-key-0123"}) as response:
            assert 'role="alert"' in await response.text()
        async with http.post(f"{tracker.url}/login", data={"key": CLIENT_KEY}) as response:
            assert 'role="alert"' in await response.text()
        async with http.post(f"{tracker.url}/login", data={"key": ADMIN_KEY}, allow_redirects=False) as response:
            cookie = response.headers["set-cookie"]
            assert (response.status, response.headers["location"]) == (303, "/")
        async with http.get(f"{tracker.url}/v1/overview") as response:
            assert response.status == 200
        async with http.get(f"{tracker.url}/v1/models", headers={"Origin": "https://evil.example"}) as response:
            assert response.status == 401, "another site's page has no use of the login"
        async with http.post(f"{tracker.url}/logout") as response:
            assert str(response.url).endswith("/login")
        async with http.get(f"{tracker.url}/v1/overview") as response:
            assert response.status == 401

    assert "HttpOnly" in cookie
    assert "SameSite=strict" in cookie
    assert "Secure" not in cookie, "this tracker is spoken to in plain HTTP"
    assert ADMIN_KEY not in cookie


async def test_a_login_over_tls_is_never_sent_in_the_clear() -> None:
    async with running_tracker(**GUARDED) as tracker, aiohttp.ClientSession() as http:
        proxied = {"x-forwarded-proto": "https"}
        async with http.post(
            f"{tracker.url}/login", data={"key": ADMIN_KEY}, headers=proxied, allow_redirects=False
        ) as response:
            assert "Secure" in response.headers["set-cookie"]


async def test_a_login_from_another_sites_form_is_refused() -> None:
    async with running_tracker(**GUARDED) as tracker:
        status, _, _ = await ask(tracker, "/login", method="POST", Origin="https://evil.example")
    assert status == 403


async def test_a_body_that_is_no_login_is_refused_early() -> None:
    body = b"key=" + b"x" * 100_000
    async with (
        running_tracker(**GUARDED) as tracker,
        aiohttp.ClientSession() as http,
        http.post(f"{tracker.url}/login", data=body) as response,
    ):
        assert response.status == 413


async def test_an_open_tracker_answers_no_foreign_name_and_a_name_can_be_allowed() -> None:
    async with running_tracker() as tracker, running_tracker(allowed_hosts=frozenset({"mesh.example"})) as named:
        refused, answer, _ = await ask(tracker, "/v1/nodes", Host="mesh.example:8090")
        allowed, _, _ = await ask(named, "/v1/nodes", Host="mesh.example")
        address, _, _ = await ask(named, "/v1/nodes", Host="192.0.2.7")
        broken, _, _ = await ask(tracker, "/v1/nodes", Host="[")

    assert (refused, allowed, address, broken) == (403, 200, 403, 403)
    assert "--allow-host mesh.example" in json.loads(answer)["error"]["message"]


@pytest.mark.parametrize("host", ["0.0.0.0", "192.0.2.7", "::", "box.lan"])
def test_beyond_loopback_a_tracker_without_keys_does_not_start_and_says_what_to_add(host: str) -> None:
    with pytest.raises(SettingsError) as refused:
        TrackerSettings(host=host)
    message = str(refused.value)
    assert all(flag in message for flag in ("--api-key ", "--admin-key ", "--join-token ", "--open"))

    words = message.split()
    drawn = {flag: words[words.index(flag) + 1] for flag in ("--api-key", "--admin-key", "--join-token")}
    TrackerSettings(
        host=host,
        api_keys=(drawn["--api-key"],),
        admin_keys=(drawn["--admin-key"],),
        join_tokens=(drawn["--join-token"],),
    )


def test_only_what_is_missing_is_asked_for() -> None:
    with pytest.raises(SettingsError) as refused:
        TrackerSettings(host="0.0.0.0", admin_keys=(ADMIN_KEY,))
    assert "--join-token " in str(refused.value)
    assert "--api-key " not in str(refused.value)


@pytest.mark.parametrize("host", ["127.0.0.1", "::1", "localhost", "127.0.0.53"])
def test_on_loopback_no_key_is_needed(host: str) -> None:
    assert not TrackerSettings(host=host).api_keys


def test_an_owner_can_say_that_everybody_is_welcome() -> None:
    assert TrackerSettings(host="0.0.0.0", is_open=True).is_open


@pytest.mark.parametrize(
    ("changes", "flag"),
    [
        ({"api_keys": ("short",)}, "--api-key"),
        ({"admin_keys": ("has a space in it",)}, "--admin-key"),
        ({"join_tokens": ("ümlautümlaut",)}, "--join-token"),
        ({"api_keys": (ADMIN_KEY,), "admin_keys": (ADMIN_KEY,)}, "must differ"),
        ({"allowed_wallets": frozenset({"abc"})}, "--allow-wallet"),
    ],
)
def test_keys_that_cannot_work_are_refused_and_not_repeated(changes: dict[str, Any], flag: str) -> None:
    with pytest.raises(SettingsError, match=flag) as refused:
        TrackerSettings(**changes)
    secrets = [key for name in ("api_keys", "admin_keys", "join_tokens") for key in changes.get(name, ())]
    assert not any(secret in str(refused.value) for secret in secrets)
    assert not any(key in repr(TrackerSettings(**GUARDED)) for key in (CLIENT_KEY, ADMIN_KEY))
