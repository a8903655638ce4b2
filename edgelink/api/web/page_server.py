"""Serve the page: a few files that everybody may read, and what they show only to who has logged in.

Everything is read; nothing that comes from a browser changes anything on this node.
"""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import hashlib
import ipaddress
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from dataclasses import dataclass
from http import HTTPStatus
from importlib import resources
from typing import Any

from aiohttp import web

from edgelink.api.web.feed import Feed
from edgelink.api.web.login import SESSION_LIVES_S, Logins
from edgelink.errors import NotRecordedError

_MOST_FOLLOWERS = 64
_MAX_REQUEST_BYTES = 4096
_TYPES = {".html": "text/html", ".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml"}
_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}
_OPEN = ("/api/login", "/api/session")
_Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@dataclass(frozen=True)
class _File:
    content: bytes
    zipped: bytes
    content_type: str
    etag: str


class WebPage:
    """The page's server, on whatever sockets :meth:`serve_on` is given."""

    def __init__(
        self,
        feed: Feed,
        logins: Logins,
        node: Callable[[str], dict[str, Any] | None],
        names: Callable[[], set[str]],
        *,
        node_id: str,
    ) -> None:
        """``node`` tells of one node, by id; ``names`` under which names a browser may ask for this machine, beside
        loopback's; ``node_id`` is this machine's."""
        self._feed = feed
        self._logins = logins
        self._node = node
        self._names = names
        self.cookie = f"edgelink_session_{node_id[:12]}"  # not another head's, to whom a tunnel at another port leads
        self._files = _read_files()
        self._ending = asyncio.Event()
        self.known: set[asyncio.BaseProtocol] = set()  # connections of who has logged in
        self.app = web.Application(client_max_size=_MAX_REQUEST_BYTES, middlewares=[self._guard])
        self.app.on_response_prepare.append(_add_headers)
        self.app.router.add_get("/", self._file)
        self.app.router.add_post("/api/login", self._login)
        self.app.router.add_post("/api/logout", self._logout)
        self.app.router.add_get("/api/session", self._session)
        self.app.router.add_get("/api/events", self._events)
        self.app.router.add_get("/api/nodes/{node_id}", self._one_node)
        self.app.router.add_get("/{name}", self._file)

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[web.AppRunner]:
        """A runner, to which sites are added, until the block ends."""
        self._ending.clear()
        runner = web.AppRunner(self.app, access_log=None, handler_cancellation=True, shutdown_timeout=0.2)
        await runner.setup()
        try:
            yield runner
        finally:
            self._ending.set()
            await runner.cleanup()

    @web.middleware
    async def _guard(self, request: web.Request, handler: _Handler) -> web.StreamResponse:
        """Under another name than ours it is somebody else's page that asks (DNS rebinding)."""
        if not is_own_name(request.headers.get("Host", ""), self._names()):
            return _refused(HTTPStatus.MISDIRECTED_REQUEST, "WrongHost", "this machine is not known by that name")
        if request.path.startswith("/api/"):
            if request.headers.get("Sec-Fetch-Site", "same-origin") not in ("same-origin", "none"):
                return _refused(HTTPStatus.FORBIDDEN, "ForeignPage", "another page asks")
            if self._logins.is_valid(request.cookies.get(self.cookie)):
                self.known.add(request.protocol)
            elif request.path not in _OPEN:
                return _refused(HTTPStatus.UNAUTHORIZED, "NotLoggedIn", "get a link with `edgelink dashboard`")
        try:
            return await handler(request)
        except web.HTTPException as error:
            return _refused(HTTPStatus(error.status), "NotServed", error.reason)

    async def _file(self, request: web.Request) -> web.StreamResponse:
        file = self._files.get(request.match_info.get("name", "index.html"))
        if file is None:
            raise web.HTTPNotFound
        headers = {"ETag": file.etag, "Cache-Control": "no-cache", "Vary": "Accept-Encoding"}
        if request.headers.get("If-None-Match") == file.etag:
            return web.Response(status=HTTPStatus.NOT_MODIFIED, headers=headers)
        body = file.content
        if "gzip" in request.headers.get("Accept-Encoding", ""):
            body, headers["Content-Encoding"] = file.zipped, "gzip"
        return web.Response(body=body, headers=headers, content_type=file.content_type, charset="utf-8")

    async def _login(self, request: web.Request) -> web.StreamResponse:
        """JSON, which no form of another page can send."""
        if request.content_type != "application/json":
            raise web.HTTPUnsupportedMediaType
        try:
            secret = (await request.json())["link"]
        except (ValueError, LookupError, TypeError, RecursionError):  # no JSON, in no known encoding, or too deep
            secret = None
        try:
            session = self._logins.redeem(secret) if isinstance(secret, str) and secret.isascii() else None
        except NotRecordedError as error:
            return _refused(HTTPStatus.INTERNAL_SERVER_ERROR, "NotRecorded", str(error))
        if session is None:
            return _refused(
                HTTPStatus.UNAUTHORIZED, "LinkNotValid", "this link was used already, or is older than five minutes"
            )
        response = web.json_response({})
        response.set_cookie(self.cookie, session, max_age=SESSION_LIVES_S, path="/", httponly=True, samesite="Strict")
        return response

    async def _session(self, request: web.Request) -> web.StreamResponse:
        return web.json_response({"logged_in": self._logins.is_valid(request.cookies.get(self.cookie))})

    async def _logout(self, request: web.Request) -> web.StreamResponse:
        try:
            self._logins.end(request.cookies.get(self.cookie))
        except NotRecordedError as error:
            return _refused(HTTPStatus.INTERNAL_SERVER_ERROR, "NotRecorded", str(error))
        response = web.json_response({})
        response.del_cookie(self.cookie, path="/", httponly=True, samesite="Strict")
        return response

    async def _one_node(self, request: web.Request) -> web.StreamResponse:
        found = self._node(request.match_info["node_id"])
        if found is None:
            return _refused(HTTPStatus.NOT_FOUND, "NoSuchNode", "no node of the network has this id")
        return web.json_response(found, headers={"Cache-Control": "no-store"})

    async def _events(self, request: web.Request) -> web.StreamResponse:
        if self._feed.watched >= _MOST_FOLLOWERS:
            why = f"{_MOST_FOLLOWERS} pages of this head are open, and no more are served: close one"
            return _refused(HTTPStatus.SERVICE_UNAVAILABLE, "TooManyFollowers", why)
        session = request.cookies.get(self.cookie)
        headers = {"Content-Type": "text/event-stream", "Cache-Control": "no-store", "X-Accel-Buffering": "no"}
        response = web.StreamResponse(headers=headers)
        with contextlib.suppress(ConnectionResetError):
            await response.prepare(request)
            async with contextlib.aclosing(self._feed.follow()) as messages:  # type: ignore[type-var]
                async for message in messages:
                    if self._ending.is_set() or not self._logins.is_valid(session):
                        break
                    await response.write(message.encode())
        return response


def is_own_name(host: str, names: Iterable[str]) -> bool:
    """Whether ``host``, as a browser sends it, is loopback or one of ``names``; pure."""
    name = host.strip().lower()
    name = name[1:].partition("]")[0] if name.startswith("[") else name.partition(":")[0]
    if name == "localhost" or name in names:
        return True
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False


async def _add_headers(_request: web.Request, response: web.StreamResponse) -> None:
    response.headers.update(_HEADERS)


def _refused(status: HTTPStatus, reason: str, why: str) -> web.Response:
    return web.json_response({"error": why, "reason": reason}, status=status)


def _read_files() -> dict[str, _File]:
    found = {}
    for file in resources.files("edgelink.api.web").joinpath("static").iterdir():
        suffix = "." + file.name.rpartition(".")[2]
        if suffix in _TYPES:
            content = file.read_bytes()
            etag = f'"{hashlib.sha256(content).hexdigest()[:16]}"'
            found[file.name] = _File(content, gzip.compress(content, mtime=0), _TYPES[suffix], etag)
    return found
