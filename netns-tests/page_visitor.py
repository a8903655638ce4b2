"""Visit the head's web page as a browser does: `page_visitor.py LINK` prints what came of it as JSON, once the page
shows all that there is."""

from __future__ import annotations

import http.client
import json
import sys
from typing import Any
from urllib.parse import urlsplit

from edgelink.api.web.model import Snapshot, apply


def main(link: str) -> None:
    parts = urlsplit(link)
    secret = parts.fragment.partition("=")[2]
    page = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=10)

    def ask(method: str, path: str, body: object = None, cookie: str = "") -> http.client.HTTPResponse:
        headers = {"Content-Type": "application/json", "Cookie": cookie}
        page.request(method, path, None if body is None else json.dumps(body), headers)
        return page.getresponse()

    def status(answer: http.client.HTTPResponse) -> int:
        answer.read()
        return answer.status

    found: dict[str, object] = {"before": status(ask("GET", "/api/events"))}
    answer = ask("POST", "/api/login", {"link": secret})
    cookie = (answer.headers["Set-Cookie"] or "").partition(";")[0]
    found["login"] = status(answer)
    found["again"] = status(ask("POST", "/api/login", {"link": secret}))
    events = ask("GET", "/api/events", cookie=cookie)
    snapshot: Any = None
    while snapshot is None or not is_whole(snapshot):  # the socket's own time-out ends it
        if (line := events.readline()).startswith(b"data: "):
            content = json.loads(line.partition(b" ")[2])
            snapshot = content if snapshot is None else apply(snapshot, content)
    print(json.dumps(found | {"snapshot": snapshot}))


def is_whole(snapshot: Snapshot) -> bool:
    """Every other node was measured, and the training has told how it goes."""
    others = [measure for node, measure in snapshot["measures"].items() if node != snapshot["head"]["node_id"]]
    return all(measure["rtt_ms"] is not None for measure in others) and len(snapshot["points"]) > 1


if __name__ == "__main__":
    main(sys.argv[1])
