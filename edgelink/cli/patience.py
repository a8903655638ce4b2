"""Say what a command waits for, once it takes longer than a person expects."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import click

EXPECTED_S = 2.0


@contextmanager
def waiting_for(what: str, *, expected_s: float = EXPECTED_S) -> Iterator[None]:
    """Print ``what`` on stderr if the block takes longer than ``expected_s``."""
    notice = threading.Timer(expected_s, click.echo, [f"edgelink: {what} …"], {"err": True})
    notice.daemon = True
    notice.start()
    try:
        yield
    finally:
        notice.cancel()
