"""The last night in ten lines of text, out of a flight recorder; pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime, timedelta, tzinfo
from typing import Any, NamedTuple

from edgelink.conditions import Status
from edgelink.duration import brief

KINDS = ("nodes", "node", "run", "condition")  # of the recorder's lines
_MOST = 8  # between the first line and the last
_RESTARTED = timedelta(minutes=1)  # a daemon that was away for longer was not just restarted
_OFTEN = 4  # as many of one kind are told together, also where there is room
_LONGEST = 80  # characters
_RESTART, _OFF = "the daemon here was restarted", "this machine, or its daemon, was off"
_NODES = {
    "paused": (2, "was silent", "is silent"),
    "trouble": (3, "did not work", "does not work"),
    "away": (3, "was away", "is away"),
    "off": (1, "was switched off", "is switched off"),
}
_OWN = {
    "Leased": "had no lease",
    "BrokerRunning": "had no broker",
    "RegistryConnected": "had no session with the relay",
    "OverlayUp": "had no overlay",
    "PeersReachable": "did not reach head or relay",
    "RayJoined": "was not in Ray",
}


class Incident(NamedTuple):
    """``about`` is the same of those that can be told together; ``until`` is None while it lasts."""

    at: datetime
    until: datetime | None
    weight: int
    about: str
    text: str


def story(
    entries: Iterable[Mapping[str, Any]], since: datetime, now: datetime, hostname: str, zone: tzinfo | None = None
) -> list[str]:
    """Tell what happened between ``since`` and ``now``, at most ten lines.

    Args:
        entries: the recorder's lines of the kinds :data:`KINDS`, starts, and the last before each start and of all,
            oldest first.
        zone: of the times that are told. None: this machine's.
    """
    told = _Telling(hostname)
    for entry in entries:
        with suppress(LookupError, TypeError, ValueError):  # another version's line
            told.take(entry, datetime.fromisoformat(entry["at"]))
    begins = max(since, told.begins or now)
    first = (
        f"{hostname}, {_at(begins, zone, '%a %H:%M')} to {_at(now, zone, '%a %H:%M')}, as its flight recorder has it"
    )
    if told.begins is None:
        return [f"{first}: nothing was recorded."]
    incidents, rest = _shortened(told.incidents(now), now)
    lines = [f"{_at(each.at, zone, '%H:%M')}  {_short(each.text, 8)}." for each in incidents]
    if rest:
        lines.append(f"{rest} more, of less weight: `edgelink report` has them.")
    return [f"{first}:", *(lines or ["Nothing happened that matters."]), told.end()]


@dataclass
class _Telling:
    hostname: str
    begins: datetime | None = None
    last: datetime | None = None
    phase: str = ""
    is_head: bool = False
    past: list[Incident] = field(default_factory=list)
    states: dict[str, str] = field(default_factory=dict)  # of the head's nodes
    why: dict[str, tuple[datetime, str]] = field(default_factory=dict)  # since when a node is so, and why
    was_true: set[str] = field(default_factory=set)  # conditions, in this daemon's life
    false: dict[str, tuple[datetime, str]] = field(default_factory=dict)
    runs: dict[tuple[str, int], datetime] = field(default_factory=dict)

    def take(self, entry: Mapping[str, Any], at: datetime) -> None:
        self.begins = self.begins or at
        match entry["what"]:
            case "started":
                self._started(at)
            case "nodes":
                self.is_head = True
                now = {name: health for health, names in entry["health"].items() for name in names}
                for name, health in now.items():
                    self._node(name, health, at, "")
            case "node":
                self.is_head = True
                self._node(entry["node"], entry["health"], datetime.fromisoformat(entry["since"]), entry["why"])
            case "run":
                self._run(entry, at)
            case "condition":
                self._condition(entry, at)
        self.phase = entry.get("phase", self.phase)
        self.last = at

    def _started(self, at: datetime) -> None:
        self.was_true.clear()
        self.false.clear()
        if self.last is None or self.last == at:
            return
        if at - self.last < _RESTARTED:
            self.past.append(Incident(self.last, at, 1, _RESTART, _RESTART))
        else:
            lasted = brief((at - self.last).total_seconds())
            self.past.append(Incident(self.last, at, 3, _OFF, f"{_OFF} for {lasted}"))

    def _node(self, name: str, health: str, at: datetime, why: str) -> None:
        was = self.states.get(name)
        if was == health or (health == "coming" and was in _NODES):  # it is back once it works
            return
        self.states[name] = health
        if was in _NODES and not (was == "paused" and health == "away"):
            since, reason = self.why.pop(name)
            self.past.append(_of_node(name, was, since, at, reason))
        if health in _NODES:
            since = self.why[name][0] if name in self.why else at
            self.why[name] = since, why

    def _run(self, entry: Mapping[str, Any], at: datetime) -> None:
        key = entry["command"], entry["attempt"]
        if not entry["ended"]:
            self.runs[key] = at
            return
        since, status = self.runs.pop(key, None), entry["exit_status"]
        lasted = "" if since is None else f" after {brief((at - since).total_seconds())}"
        how = "ended" if status in (None, 0) else f"failed with status {status}"
        why = f"; {entry['why']}" if entry["why"] else ""
        weight = 2 if status == 0 else 4
        self.past.append(
            Incident(at, at, weight, f"{entry['command']} {how}", f"{entry['command']} {how}{lasted}{why}")
        )

    def _condition(self, entry: Mapping[str, Any], at: datetime) -> None:
        kind = entry["type"]
        if kind not in _OWN:
            return
        if entry["status"] == Status.TRUE.value:
            self.was_true.add(kind)
            if kind in self.false:
                since, reason = self.false.pop(kind)
                self.past.append(self._own(kind, since, at, reason))
        elif entry["status"] == Status.FALSE.value and kind in self.was_true:
            self.false.setdefault(kind, (at, entry["reason"]))

    def _own(self, kind: str, since: datetime, until: datetime, reason: str) -> Incident:
        about = f"{self.hostname} {_OWN[kind]}"
        lasted = brief((until - since).total_seconds())
        return Incident(since, until, 3, about, f"{about} for {lasted} ({reason})")

    def incidents(self, now: datetime) -> list[Incident]:
        """Also what has not ended yet. What the head says of its nodes says more than its own view of them."""
        lasting = [_of_node(name, self.states[name], since, None, why) for name, (since, why) in self.why.items()]
        lasting += [self._own(kind, since, now, reason) for kind, (since, reason) in self.false.items()]
        lasting += [
            Incident(since, None, 2, command, f"{command} was started, and runs")
            for (command, _), since in self.runs.items()
        ]
        unwanted = f"{self.hostname} {_OWN['PeersReachable']}" if self.is_head else None
        return _by_time(each for each in [*self.past, *lasting] if each.about != unwanted)

    def end(self) -> str:
        if not self.states:
            return f"In the end {self.hostname} was {self.phase or 'in an unknown phase'}."
        still = {"coming": "is starting", **{health: words[2] for health, words in _NODES.items()}}
        bad = [f"{name} {still[health]}" for name, health in sorted(self.states.items()) if health in still]
        works = len(self.states) - len(bad)
        if not bad:
            return f"In the end all {works} nodes work."
        return _short(f"In the end {works} of {len(self.states)} nodes work: {', '.join(bad)}.")


def _of_node(name: str, health: str, since: datetime, until: datetime | None, why: str) -> Incident:
    weight, was, still = _NODES[health]
    because = "; Ray went on with it" if health == "paused" else f": {why}" if why and health != "off" else ""
    if until is None:
        return Incident(since, None, weight + 1, f"{name} {was}", f"{name} {still} since then{because}")
    return Incident(
        since, until, weight, f"{name} {was}", f"{name} {was} for {brief((until - since).total_seconds())}{because}"
    )


def _shortened(incidents: list[Incident], now: datetime) -> tuple[list[Incident], int]:
    """At most :data:`_MOST`, and how many are left out. What happened often is told once."""
    while incidents:
        counts: dict[str, list[Incident]] = {}
        for each in incidents:
            counts.setdefault(each.about, []).append(each)
        often = max(counts.values(), key=len)
        if len(incidents) <= _MOST and len(often) < _OFTEN:
            break
        if len(often) == 1:
            heaviest = sorted(incidents, key=lambda each: (each.weight, _lasted(each, now)))[-(_MOST - 1) :]
            return _by_time(heaviest), len(incidents) - len(heaviest)
        incidents = _by_time([*(each for each in incidents if each not in often), _together(often, now)])
    return incidents, 0


def _by_time(incidents: Iterable[Incident]) -> list[Incident]:
    return sorted(incidents, key=lambda each: each.at)


def _together(often: list[Incident], now: datetime) -> Incident:
    lasted = [_lasted(each, now) for each in often]
    text = f"{often[0].about} {len(often)} times"
    if longest := max(lasted):
        text += f", {brief(sum(lasted))} in all, {brief(longest)} at most"
    return Incident(often[0].at, often[-1].until, max(each.weight for each in often), f"{often[0].about} often", text)


def _lasted(incident: Incident, now: datetime) -> float:
    return ((incident.until or now) - incident.at).total_seconds()


def _short(text: str, spare: int = 0) -> str:
    """On one line of a terminal, ``spare`` characters of which are taken."""
    text = " ".join(text.split())
    room = _LONGEST - spare
    return text if len(text) <= room else text[: room - 1].rstrip() + "…"


def _at(moment: datetime, zone: tzinfo | None, form: str) -> str:
    return f"{moment.astimezone(zone):{form}}"
