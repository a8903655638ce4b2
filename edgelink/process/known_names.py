"""What this machine means by a name, the hosts file aside."""

from __future__ import annotations

import asyncio
import re
import socket
from contextlib import suppress
from ipaddress import IPv4Address
from pathlib import Path

from edgelink.process.answer import AnswerTooLongError, answer_of, end
from edgelink.timeouts import timeout

_NSSWITCH = Path("/etc/nsswitch.conf")
_TIMEOUT_S = 15.0  # glibc asks each of two DNS servers for 5 s
_MAX_BYTES = 64 * 1024


async def is_known_name(name: str, but: IPv4Address) -> bool:
    """Whether ``name`` is this machine's own, or its resolver leads it elsewhere than to ``but``.

    It counts as known, too, where the resolver cannot be asked without the hosts file. A resolver that does not answer
    knows nothing.
    """
    own = socket.gethostname().lower()
    if name in ("localhost", own, own.partition(".")[0]):
        return True
    sources = _sources()
    if not sources:
        return False
    try:
        process = await asyncio.create_subprocess_exec(
            *("getent", "-s", f"hosts:{sources}", "ahosts", name),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
            start_new_session=True,
        )
    except OSError:
        return True
    output = b""
    try:
        with suppress(TimeoutError, AnswerTooLongError):
            async with timeout(_TIMEOUT_S):
                output, _ = await answer_of(process, _MAX_BYTES)
    finally:
        await end(process)
    if process.returncode == 1:  # it does not know the option
        return True
    found = {line.split()[0] for line in output.decode(errors="replace").splitlines() if line.split()}
    return not found <= {str(but), f"::ffff:{but}"}


def _sources() -> str:
    """Where the resolver looks beside the hosts file, in the words of nsswitch.conf."""
    try:
        configured = re.search(r"^[ \t]*hosts:([^#\n]*)", _NSSWITCH.read_text(errors="replace"), re.MULTILINE)
    except OSError:
        configured = None
    sources = "files dns" if configured is None else configured[1]
    return " ".join(re.sub(r"(?<!\S)files(\s*\[[^\]]*\])?(?!\S)", "", sources).split())
