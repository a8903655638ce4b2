"""``edgelink ping NODE``: does that node answer over the overlay, how fast, and on what way."""

from __future__ import annotations

import json
from statistics import median
from typing import Any

import click

from edgelink.api.client import DaemonNotRunningError, call_here
from edgelink.api.json_version import VERSION
from edgelink.cli.layout import columns, say, wrapped
from edgelink.cli.node_argument import NodeName
from edgelink.cli.options import DURATION, json_option, timeout_option
from edgelink.cli.status import way_in_words
from edgelink.clock import SystemClock
from edgelink.errors import ExitCode

_LEAST_INTERVAL_S = 0.05
_ANSWER_S = 15.0  # EasyTier may be slow to say on what way


@click.command("ping")
@click.argument("node", type=NodeName())
@click.option(
    "-c", "--count", type=click.IntRange(min=0), default=5, show_default=True, help="pings to send; 0: until Ctrl-C"
)
@click.option("--interval", "interval_s", type=DURATION, default="1s", show_default=True, help="between two pings")
@timeout_option("for one answer, 10s at most", "2s")
@click.option("--full", "is_full", is_flag=True, help="packets as large as the overlay carries")
@json_option
def command(*, node: str, count: int, interval_s: float, timeout_s: float, is_full: bool, as_json: bool) -> int:
    """Ping NODE (hostname, rank or overlay address) over the overlay, from this node's daemon.

    Tells the round trip, and on what way the node is reached: directly, or through whom.

    Exit status 0: it answered at least once; 1: it did not.
    """
    clock = SystemClock()
    question = {"node": node, "timeout_s": timeout_s, "full": is_full}
    answers: list[dict[str, Any]] = []
    gone: DaemonNotRunningError | None = None
    try:
        while count == 0 or len(answers) < count:
            started_s = clock.monotonic_s()
            try:
                answers.append(call_here("POST", "/ping", question, timeout_s=timeout_s + _ANSWER_S))
            except DaemonNotRunningError as error:
                if count != 0 or not answers:
                    gone = error
                    break
                say(error.message)  # it is restarted, or Ctrl-C ends this
            else:
                _say({"event": "probe", "seq": len(answers), **answers[-1]}, as_json=as_json)
            if len(answers) != count:
                spent_s = clock.monotonic_s() - started_s
                clock.block(max(0.0, max(interval_s, _LEAST_INTERVAL_S) - spent_s))
    except KeyboardInterrupt:
        pass
    if answers:
        _say({"schema": VERSION, "event": "summary", **summary(answers)}, as_json=as_json)
    if gone is not None:
        raise gone
    return ExitCode.OK if any(answer["rtt_ms"] is not None for answer in answers) else ExitCode.FAILED


def summary(answers: list[dict[str, Any]]) -> dict[str, Any]:
    """Round trips, loss and the ways that were seen, of one or more answers; pure."""
    rtts = sorted(answer["rtt_ms"] for answer in answers if answer["rtt_ms"] is not None)
    ways = [way_of(answer) for answer in answers if answer["rtt_ms"] is not None] or [way_of(answers[-1])]
    return {
        "hostname": answers[0]["hostname"],
        "overlay_ip": answers[0]["overlay_ip"],
        "sent": len(answers),
        "answered": len(rtts),
        "loss": round(1 - len(rtts) / len(answers), 4),
        "rtt_min_ms": rtts[0] if rtts else None,
        "rtt_median_ms": round(median(rtts), 3) if rtts else None,
        "rtt_p95_ms": rtts[-(-95 * len(rtts) // 100) - 1] if rtts else None,
        "rtt_max_ms": rtts[-1] if rtts else None,
        "ways": [way for way, before in zip(ways, [None, *ways], strict=False) if way != before],
    }


def way_of(answer: dict[str, Any]) -> str:
    """In words; EasyTier may not know it (yet), and an overlay that was there already has none to tell of; pure."""
    return "no route known" if answer["path"] is None else way_in_words(answer)


def lines(event: dict[str, Any], width: int) -> list[str]:
    """One probe, or the summary, for people; no line wider than ``width``; pure."""
    name = f"{event['hostname']} ({event['overlay_ip']})"
    if event["event"] == "probe":
        if event["rtt_ms"] is None:
            return wrapped(f"{event['seq']:>3} {name}: ", f"no answer, {way_of(event)}", width)
        return wrapped(f"{event['seq']:>3} {name}: ", f"{event['rtt_ms']:.1f} ms, {way_of(event)}", width)
    found = wrapped(f"{name}: ", f"{event['sent']} sent, {event['answered']} answered, {event['loss']:.0%} lost", width)
    if event["answered"]:
        rtts = "/".join(f"{event[f'rtt_{key}_ms']:.1f}" for key in ("min", "median", "p95", "max"))
        found += wrapped("round trip min/median/p95/max: ", f"{rtts} ms", width)
    return found + wrapped("", ", then ".join(event["ways"]), width)


def _say(event: dict[str, Any], *, as_json: bool) -> None:
    click.echo(json.dumps(event) if as_json else "\n".join(lines(event, columns())))
