"""Logging: structlog events with stable names, JSON unless on a terminal, secrets redacted.

Every secret that the process learns is registered with :func:`hide`; whatever is logged afterwards shows ``***`` in
its place, also when the secret reaches us inside a foreign process's output.
"""

from __future__ import annotations

import base64
import json
import logging
import os
import sys
import threading
from collections import deque
from collections.abc import MutableMapping
from contextlib import suppress
from logging.handlers import RotatingFileHandler
from pathlib import Path
from typing import Any
from urllib.parse import quote

import structlog

_hidden: set[str] = set()
_longest_first: tuple[str, ...] | None = ()  # the same: one may be a part of another; None: to be made again
_hiding = threading.Lock()
_recent: deque[str] = deque(maxlen=2000)
_logged = 0  # lines in all
_FILE_BYTES = 5 << 20  # then a new one is begun, and one old one is kept
_MIN_SECRET_LENGTH = 8  # anything shorter would blank ordinary words


def hide(*secrets: str) -> None:
    """Never show these strings again, neither raw nor in base64 nor URL-escaped."""
    global _longest_first
    for secret in secrets:
        if len(secret) < _MIN_SECRET_LENGTH:
            continue
        encoded = base64.b64encode(secret.encode()).decode()
        with _hiding:
            _hidden.update({secret, encoded, encoded.rstrip("="), quote(secret, safe="")})
            _longest_first = None


def redact(text: str) -> str:
    """``text`` with every registered secret replaced by ``***``."""
    for secret in _by_length():
        if secret in text:
            text = text.replace(secret, "***")
    return text


def _by_length() -> tuple[str, ...]:
    """Sorted once for many lines: a relay of a thousand nodes has learned thousands."""
    global _longest_first
    with _hiding:
        if _longest_first is None:
            _longest_first = tuple(sorted(_hidden, key=len, reverse=True))
        return _longest_first


def _redact_event(_logger: Any, _method: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    for key, value in event.items():
        if isinstance(value, str):
            event[key] = redact(value)
        elif value is not None and not isinstance(value, bool | int | float):
            event[key] = redact(str(value))
    return event


def _remember(_logger: Any, _method: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    global _logged
    _recent.append(json.dumps(event, default=str))
    _logged += 1
    return event


def recent() -> list[str]:
    """The last lines that this process logged, as JSON, oldest first."""
    return list(_recent)


def recent_after(number: int) -> tuple[list[str], int]:
    """Those of :func:`recent` that were logged after the first ``number`` lines, and how many there are by now.

    A number that was never reached is another process': then all of them.
    """
    new = _logged - number if 0 <= number <= _logged else _logged
    return list(_recent)[-new:] if new else [], _logged


class _Tolerant:
    """A stream whose reader is gone, or whose disk is full, costs the line, not the daemon; :func:`recent` has it."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    def write(self, text: str) -> None:
        with suppress(OSError):
            self._stream.write(text)

    def flush(self) -> None:
        with suppress(OSError):
            self._stream.flush()


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


class _LogFile(RotatingFileHandler):
    """The log as JSON lines in a file. A full disk, or a directory that may not be made, costs lines only."""

    def __init__(self, path: Path) -> None:
        super().__init__(path, maxBytes=_FILE_BYTES, backupCount=1, encoding="utf-8", delay=True)

    def __call__(self, _logger: Any, _method: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
        self.emit(logging.makeLogRecord({"msg": json.dumps(event, default=str)}))
        return event

    def _open(self) -> Any:
        Path(self.baseFilename).parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        return open(self.baseFilename, self.mode, encoding=self.encoding, opener=_private)

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802 - logging's name
        """Say nothing: :func:`recent` has the line."""


def configure(
    *,
    verbose: bool = False,
    quiet: bool = False,
    stream: Any = None,
    renderer: Any = None,
    file: Path | None = None,
) -> None:
    """Set up logging for a process; called once, by the CLI.

    Args:
        quiet: log warnings and worse only.
        renderer: the last processor of structlog. None: colours on a terminal, else JSON.
        file: gets every line, too, as JSON; the one before it ends in ``.1``.
    """
    stream = stream or sys.stderr
    tolerant: Any = _Tolerant(stream)
    level = logging.DEBUG if verbose else logging.WARNING if quiet else logging.INFO
    renderer = renderer or (
        structlog.dev.ConsoleRenderer(colors=True)
        if stream.isatty()
        else structlog.processors.JSONRenderer(sort_keys=False)
    )
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            _redact_event,
            _remember,
            *([] if file is None else [_LogFile(file)]),
            renderer,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=structlog.PrintLoggerFactory(file=tolerant),
        cache_logger_on_first_use=False,
    )


def get_logger(component: str) -> Any:
    """A logger whose events carry ``component``."""
    return structlog.get_logger(component=component)
