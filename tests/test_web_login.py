"""Links that work once, sessions, and what the page's server refuses."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import aclosing
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from edgelink import log
from edgelink.api import sites
from edgelink.api.sites import LOOPBACK, Place, listening_socket
from edgelink.api.web.feed import Feed
from edgelink.api.web.login import LINK_LIVES_S, SESSION_LIVES_S, Logins
from edgelink.api.web.model import Head, Snapshot
from edgelink.api.web.page_server import WebPage, is_own_name
from edgelink.errors import NotRecordedError
from edgelink.testing import FakeClock

HEAD, OTHER_HEAD = "c" * 26, "d" * 26


def of_node(node_id: str) -> dict[str, Any] | None:
    return {"node_id": node_id} if node_id == "a" else None


def snapshot(**head: Any) -> Snapshot:
    known: Any = {"hostname": "cloud", **head}
    return Snapshot(head=Head(**known), nodes={}, measures={}, run=None, events=[], points=[], traffic=[])


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def logins(tmp_path: Path, clock: FakeClock) -> Logins:
    return Logins(tmp_path / "run" / "web.key", clock)


def test_a_link_works_once(logins: Logins) -> None:
    """Who reads it later, in a browser's history or over somebody's shoulder, gets nothing."""
    link = logins.new_link()
    session = logins.redeem(link)
    assert logins.is_valid(session)
    assert logins.redeem(link) is None
    assert logins.redeem("nonsense") is None
    assert link in log._hidden


async def test_links_and_sessions_end(logins: Logins, clock: FakeClock) -> None:
    """A link after five minutes, a session after half a day."""
    late, link = logins.new_link(), logins.new_link()
    session = logins.redeem(link)
    await clock.advance(LINK_LIVES_S)
    assert logins.redeem(late) is None
    assert logins.is_valid(session)
    await clock.advance(SESSION_LIVES_S)
    assert not logins.is_valid(session)


def test_sessions_go_on_after_a_restart_until_all_are_ended(logins: Logins, tmp_path: Path, clock: FakeClock) -> None:
    """A daemon that is upgraded logs nobody out; its operator can."""
    session = logins.redeem(logins.new_link())
    key = tmp_path / "run" / "web.key"
    assert key.stat().st_mode & 0o777 == 0o600
    successor = Logins(key, clock)
    assert successor.is_valid(session)
    link = successor.new_link()
    successor.end_all()
    assert not successor.is_valid(session)
    assert successor.redeem(link) is None
    key.unlink()
    assert not Logins(key, clock).is_valid(session), "the next boot"


@pytest.mark.parametrize("change", [lambda s: s[:-1] + ("0" if s[-1] != "0" else "1"), lambda s: "9" + s, lambda _: ""])
def test_a_session_that_was_changed_is_none(logins: Logins, change: Any) -> None:
    """Neither its date nor its signature."""
    session = logins.redeem(logins.new_link())
    assert session is not None
    assert not logins.is_valid(change(session))
    assert not logins.is_valid(None)


def test_a_session_that_was_ended_stays_ended(logins: Logins, tmp_path: Path, clock: FakeClock) -> None:
    """Under the next daemon, too; others go on."""
    one, other = (logins.redeem(logins.new_link()) for _ in range(2))
    logins.end(one)
    logins.end("9999999999.0123456789abcdef." + "0" * 64)  # somebody's own
    logins.end(None)
    for each in (logins, Logins(tmp_path / "run" / "web.key", clock)):
        assert (each.is_valid(one), each.is_valid(other)) == (False, True)


async def test_what_is_remembered_of_ended_sessions_is_bounded(
    logins: Logins, tmp_path: Path, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Until their date; of more than can be remembered all end, those that are used now as well."""
    monkeypatch.setattr("edgelink.api.web.login._MOST_ENDED", 3)
    key = tmp_path / "run" / "web.key"
    for _ in range(3):
        logins.end(logins.redeem(logins.new_link()))
    size = key.stat().st_size
    await clock.advance(SESSION_LIVES_S + 1)
    session, last = logins.redeem(logins.new_link()), logins.redeem(logins.new_link())
    logins.end(last)
    assert key.stat().st_size < size, "the old ones were forgotten"
    assert logins.is_valid(session)
    ended = [logins.redeem(logins.new_link()) for _ in range(3)]
    for each in ended:
        logins.end(each)
    assert not any(logins.is_valid(each) for each in (session, last, *ended))
    assert logins.is_valid(logins.redeem(logins.new_link()))


def test_a_link_that_could_not_be_exchanged_is_not_used_up(
    logins: Logins, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The disk is full: once it is not, the same link logs in."""
    link = logins.new_link()
    with monkeypatch.context() as patch:
        patch.setattr("edgelink.api.web.login.write_atomic", lambda path, _: refuse(path))
        with pytest.raises(NotRecordedError):
            logins.redeem(link)
    assert logins.is_valid(logins.redeem(link))


def refuse(path: Path) -> None:
    raise NotRecordedError(f"{path}: no room")


def test_asking_without_a_session_writes_nothing(logins: Logins, tmp_path: Path) -> None:
    """Whoever comes with a session that he made up: no key is made for him, which a full disk would refuse."""
    assert not logins.is_valid(f"9999999999.0123456789abcdef.{'0' * 64}")
    assert not (tmp_path / "run").exists()


def test_of_many_links_the_newest_work(logins: Logins) -> None:
    """Nobody fills the memory with links."""
    links = [logins.new_link() for _ in range(40)]
    assert logins.redeem(links[0]) is None
    assert logins.redeem(links[-1]) is not None


@pytest.mark.parametrize(
    ("host", "is_own"),
    [
        ("127.0.0.1:8270", True),
        ("localhost:9000", True),
        ("[::1]:8270", True),
        ("10.10.0.2:8270", True),
        ("Cloud", True),
        ("evil.example", False),
        ("127.0.0.1.evil.example:8270", False),
        ("10.10.0.3:8270", False),
        ("", False),
    ],
)
def test_only_our_own_names_are_served(host: str, is_own: bool) -> None:
    """A page of somebody else's whose name was made to lead here asks under that name."""
    assert is_own_name(host, {"10.10.0.2", "cloud"}) is is_own


class Browser:
    """Asks the real server over TCP."""

    def __init__(self, session: aiohttp.ClientSession, url: str, logins: Logins, feed: Feed, cookie: str) -> None:
        self.session, self.url, self.logins, self.feed, self.cookie = session, url, logins, feed, cookie

    async def get(self, path: str, **headers: str) -> tuple[int, Any]:
        async with self.session.get(self.url + path, headers=headers) as answer:
            return answer.status, await answer.text()

    async def log_in(self, link: str | None = None, **more: Any) -> aiohttp.ClientResponse:
        body = {"json": {"link": link or self.logins.new_link()}} | more
        answer = await self.session.post(self.url + "/api/login", **body)
        await answer.read()
        return answer


@pytest.fixture
async def browser(logins: Logins) -> AsyncIterator[Browser]:
    feed = Feed()
    feed.publish(snapshot())
    page = WebPage(feed, logins, of_node, set, node_id=HEAD)
    async with page.running() as runner:
        listener = listening_socket(Place(LOOPBACK), 0)
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        await web.SockSite(runner, listener).start()
        jar = aiohttp.CookieJar(unsafe=True)  # takes cookies of addresses, too
        async with aiohttp.ClientSession(cookie_jar=jar) as session:
            yield Browser(session, url, logins, feed, page.cookie)


async def test_without_login_nothing_is_told(browser: Browser) -> None:
    """The empty page is everybody's, what it shows is not."""
    assert (await browser.get("/"))[0] == 200
    for path in ("/api/events", "/api/nodes/a", "/api/nodes/b", "/api/nothing"):
        status, text = await browser.get(path)
        assert (status, json.loads(text)["reason"]) == (401, "NotLoggedIn")
    assert json.loads((await browser.get("/api/session"))[1]) == {"logged_in": False}
    assert (await browser.log_in("nonsense")).status == 401
    status, _ = await browser.get("/api/nodes/a", Cookie=f"{browser.cookie}=9999999999.0123456789abcdef.{'0' * 64}")
    assert status == 401


async def test_a_link_is_exchanged_for_a_cookie_that_scripts_and_other_sites_do_not_get(browser: Browser) -> None:
    """HttpOnly, SameSite=Strict; and logging out takes it back, also from who has copied it."""
    answer = await browser.log_in()
    cookie = answer.cookies[browser.cookie]
    assert (answer.status, cookie["httponly"], cookie["samesite"], cookie["path"]) == (200, True, "Strict", "/")
    assert (await browser.get("/api/nodes/a"))[0] == 200
    assert (await browser.get("/api/nodes/b"))[0] == 404
    await browser.session.post(browser.url + "/api/logout")
    assert (await browser.get("/api/nodes/a"))[0] == 401
    assert (await browser.get("/api/nodes/a", Cookie=f"{browser.cookie}={cookie.value}"))[0] == 401


async def test_who_logs_in_to_one_head_stays_logged_in_to_another(browser: Browser, tmp_path: Path) -> None:
    """Through two tunnels both are at 127.0.0.1, and a browser tells its cookies to every port of a name."""
    await browser.log_in()
    logins = Logins(tmp_path / "other" / "web.key", FakeClock())
    page = WebPage(browser.feed, logins, of_node, set, node_id=OTHER_HEAD)
    async with page.running() as runner:
        listener = listening_socket(Place(LOOPBACK), 0)
        await web.SockSite(runner, listener).start()
        other = Browser(
            browser.session, f"http://127.0.0.1:{listener.getsockname()[1]}", logins, browser.feed, page.cookie
        )
        assert (await other.get("/api/nodes/a"))[0] == 401
        await other.log_in()
        assert [(await each.get("/api/nodes/a"))[0] for each in (browser, other)] == [200, 200]
        await other.session.post(other.url + "/api/logout")
        assert [(await each.get("/api/nodes/a"))[0] for each in (browser, other)] == [200, 401]


@pytest.mark.parametrize(
    "body",
    [
        {"data": b'{"link": "x"}'},
        {"data": b"[1]", "headers": {"Content-Type": "application/json"}},
        {"data": b'{"link": "\\ud800"}', "headers": {"Content-Type": "application/json"}},
        {"data": b"[" * 4000, "headers": {"Content-Type": "application/json"}},
        {"data": b"{}", "headers": {"Content-Type": "application/json; charset=nonsense"}},
    ],
)
async def test_what_is_no_login_is_refused(browser: Browser, body: dict[str, Any]) -> None:
    """A form of another page cannot send JSON; nonsense ends nothing."""
    assert (await browser.log_in(json=None, **body)).status in (401, 415)
    assert (await browser.log_in()).status == 200


async def test_other_names_and_other_pages_are_refused(browser: Browser) -> None:
    """DNS that was made to lead here, and a page of another origin, also with a session."""
    await browser.log_in()
    assert (await browser.get("/", Host="evil.example"))[0] == 421
    assert (await browser.get("/api/nodes/a", Host="evil.example"))[0] == 421
    assert (await browser.get("/api/nodes/a", **{"Sec-Fetch-Site": "cross-site"}))[0] == 403
    assert (await browser.get("/api/nodes/a", **{"Sec-Fetch-Site": "same-origin"}))[0] == 200


async def test_the_page_runs_nothing_that_is_not_ours(browser: Browser) -> None:
    """No inline script, nothing from elsewhere, in nobody's frame; files that are known are not sent again."""
    async with browser.session.get(browser.url + "/") as answer:
        policy = answer.headers["Content-Security-Policy"]
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
        assert answer.headers["X-Frame-Options"] == "DENY"
        text, etag = await answer.text(), answer.headers["ETag"]
    assert "<script>" not in text
    assert "style=" not in text
    assert "http" not in text.replace("http-equiv", "")
    assert (await browser.get("/", **{"If-None-Match": etag}))[0] == 304
    assert (await browser.get("/style.css"))[0] == 200
    for path in ("/login.py", "/..%2fserver.py", "/static/app.js"):
        assert (await browser.get(path))[0] == 404


async def test_followers_get_all_of_it_and_then_each_change(browser: Browser) -> None:
    """Over the wire, as the page reads it; a session that was ended gets no more."""
    await browser.log_in()
    async with asyncio.timeout(20), browser.session.get(browser.url + "/api/events") as answer:
        assert answer.content_type == "text/event-stream"
        first = await answer.content.readuntil(b"\n\n")
        assert first.startswith(b"event: snapshot\ndata: ")
        browser.feed.publish(snapshot(hostname="other"))
        second = (await answer.content.readuntil(b"\n\n")).decode()
        assert second.startswith("event: changes")
        assert json.loads(second.partition("data: ")[2]) == {"head": {"hostname": "other"}}
        browser.logins.end_all()
        browser.feed.publish(snapshot(hostname="third"))
        assert await answer.content.read() == b""


async def test_who_has_not_logged_in_closes_no_page_by_connecting(
    logins: Logins, monkeypatch: pytest.MonkeyPatch, port: int
) -> None:
    """However often: idle connections make room for each other, and for who comes to log in."""
    monkeypatch.setattr(sites, "MOST_CONNECTIONS", 8)
    feed = Feed()
    feed.publish(snapshot())
    page = WebPage(feed, logins, lambda _: None, set, node_id=HEAD)
    async with page.running() as runner, asyncio.timeout(20):
        served = sites.Sites(runner, port, FakeClock(), lambda *_: None, page.known)
        await served.follow([Place(LOOPBACK)])
        jar = aiohttp.CookieJar(unsafe=True)
        async with aiohttp.ClientSession(f"http://127.0.0.1:{port}", cookie_jar=jar) as session:
            assert (await session.post("/api/login", json={"link": logins.new_link()})).status == 200
            async with session.get("/api/events") as answer:
                await answer.content.readuntil(b"\n\n")
                idle = [await asyncio.open_connection("127.0.0.1", port) for _ in range(40)]
                assert all([await reader.read() == b"" for reader, _ in idle[:30]])
                feed.publish(snapshot(hostname="other"))
                assert b"other" in await answer.content.readuntil(b"\n\n")
            for _, writer in idle:
                writer.close()
        served.close()


async def test_a_slow_follower_is_told_all_anew() -> None:
    """What waits for it is bounded."""
    feed = Feed()
    feed.publish(snapshot(hostname="0"))
    async with aclosing(feed.follow()) as messages:  # type: ignore[type-var]
        assert "snapshot" in await anext(messages)
        for number in range(100):
            feed.publish(snapshot(hostname=str(number + 1)))
        text = await anext(messages)
        assert text.startswith("event: snapshot")
        assert feed.watched == 1
        feed.publish(snapshot(hostname="last"))
        assert await anext(messages) == 'event: changes\ndata: {"head":{"hostname":"last"}}\n\n', "nothing twice"
    assert feed.watched == 0
