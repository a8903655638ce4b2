"""What this machine means by a name, the hosts file aside."""

from __future__ import annotations

import re
import socket
from ipaddress import IPv4Address
from pathlib import Path

from edgelink.process.answer import short_answer

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
    asked = ("getent", "-s", f"hosts:{sources}", "ahosts", name)
    try:
        answer = await short_answer(*asked, timeout_s=_TIMEOUT_S, max_bytes=_MAX_BYTES)
    except OSError:
        return True
    if answer is None:
        return False
    status, output = answer
    if status == 1:  # it does not know the option
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
