"""What a support bundle holds of one node: text without secrets, read from files, so also without a daemon.

Masked is what this node knows to be secret (keys, tokens, passwords, in the clear, base64 and URL-escaped), and
whatever looks like it: tokens by their prefix, values after words such as `password`, passwords in URLs, private keys.
The output of Ray's workers is not part of it: that is the user's own.
"""

from __future__ import annotations

import json
import os
import platform
import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from edgelink import __version__
from edgelink.config.paths import Paths
from edgelink.errors import EdgelinkError
from edgelink.log import hide, redact
from edgelink.process.output import read_end, tail
from edgelink.protocol.membership import Membership
from edgelink.protocol.token import PREFIX
from edgelink.ray_cluster.local_ray import noted_user_uid
from edgelink.ray_cluster.temp_dir import ray_log_directory
from edgelink.telemetry.recorder import recorded, recorded_since

_LINES = 3000
RAY_LOGS = (
    "raylet.out",
    "raylet.err",
    "gcs_server.out",
    "gcs_server.err",
    "dashboard_agent.log",
    "runtime_env_agent.log",
)
_MAX_SECRET_BYTES = 16 * 1024
# The ends of names whose values are secret; `PWD` alone is where a shell is.
_NAMES = r"""(?: secret (?: [_-]?key )? | passw(?:or)?d | passphrase | (?<=[_-])pwd | (?-i:(?<=_)PASS) | token
    | (?: api | private | access )[_-]?key (?: [_-]?id )? | authorization | edgelink_session | (?<=[#])link )"""
_VALUE = r"""(?: (?<=") (?: [^"\\\n] | \\(?!") ){4,}
      | (?<=') (?: [^'\\\n] | \\(?!') ){4,}
      | (?: [^\s"',}\]\\] | \\(?!["']) ){4,} )"""
_BEGINNINGS = "hf_|gh[pousr]_|github_pat_|glpat-|sk-"
_SECRET_NAME = re.compile(rf"(?ix) {_NAMES} $")
# Each in time linear in the text, whatever it is: a part of it comes from other nodes.
_SECRET_VALUE = re.compile(
    rf"""(?ix)
    ( {_NAMES} \\?["']? [ \t]* [:=] [ \t]* (?: \r?\n [ \t]+ )? (?: !!?\w* [ \t]+ )?
        \\?["']? (?: (?: bearer | basic | token ) \s+ )? )
    {_VALUE}"""
)
_SECRET_OPTION = re.compile(  # --password VALUE, also where it is one of a list
    rf"""(?ix) ( -- (?: [a-z0-9]+ [_-] )* {_NAMES} (?: [ \t]+ \\?["']? | \\?(["']) , \s* \\?\2 ) )
    (?! [-\s] ) {_VALUE}"""
)
_SECRET_BLOCK = re.compile(  # YAML: the lines below `password: |`, which are further to the right
    rf"""(?imx) ^ ( (?P<indent> [ \t]* ) (?P<item> - [ ] )? ["']? [\w.-]{{0,64}} {_NAMES} ["']? [ \t]* : [ \t]*
        [|>] [-+0-9]* [ \t]* \n )
    (?: (?P=indent) (?(item) [ \t]{{3,}} | [ \t]+ ) [^\n]* (?: \n | \Z ) | [ \t]* \n )+"""
)
_WORD = re.compile(r"[\w.]{0,12}")  # too short for a token, and nothing else
_URL_PASSWORD = re.compile(r"""(://[^\s/:@"']*:)[^\s/"']+@""")
_PRIVATE_KEY = re.compile(r"(-----BEGIN [A-Z ]{0,32}PRIVATE KEY-----).*?(?=-----END|\Z)", re.DOTALL)
_END_OF_PRIVATE_KEY = re.compile(  # of a log whose beginning was cut off
    r"^[A-Za-z0-9+/=]{1,76}\r?\n (?:[A-Za-z0-9+/]{60,76}\r?\n){0,99} (?:[A-Za-z0-9+/=]{1,76}\r?\n)?"
    r"(?=-----END[ ][A-Z ]{0,32}PRIVATE[ ]KEY-----)",
    re.MULTILINE | re.VERBOSE,
)
_TOKEN = re.compile(  # an asterisk where a part of it was masked already
    rf"{re.escape(PREFIX)}[\w*-]{{8,}}|\b(?:{_BEGINNINGS})[\w*-]{{16,}}"
)
# A line of JSON without any of them has no secret; most lines are spared the reading so.
_HINT = re.compile(rf"(?ix) {_NAMES} | {re.escape(PREFIX)} | {_BEGINNINGS} | : \\?/ \\?/ | PRIVATE [ ] KEY | \\u")


def collect(
    paths: Paths,
    since: timedelta,
    now: datetime,
    *,
    config_file: Path | None = None,
    ray_temp: Path | None = None,
    answers: Mapping[str, Any] | None = None,
) -> dict[str, str]:
    """The bundle: text by file name.

    Args:
        since: how far back the flight recorder is read.
        ray_temp: Ray's directory as configured; the one that is used counts more, where that is known.
        answers: what this node's daemons said of themselves, by file name; none runs, none is there.
    """
    hide_secrets(paths)
    found: dict[str, str] = {"about.json": json.dumps(_about(paths, now, since), indent=2)}
    for name, answer in (answers or {}).items():
        found[name] = answer if isinstance(answer, str) else json.dumps(answer, indent=2)
    for recorder in sorted(paths.recorder.glob("*")):
        found[f"flight-{recorder.name}.jsonl"] = "\n".join(recorded(recorder, now - since))
    for file in sorted(paths.logs.glob("*.log*")):
        found[f"logs/{file.name}"] = tail(file, _LINES)
    for name in ("last-run.json", "cluster-spec.json", "directory.json"):
        with suppress(OSError):
            found[name] = (paths.state / name).read_text(errors="replace")
    if config_file is not None:
        with suppress(OSError):
            found["edgelink.yaml"] = config_file.read_text(errors="replace")
    directory, ray_uid = ray_log_directory(paths, ray_temp), noted_user_uid(paths)
    for name in RAY_LOGS if ray_uid is not None else ():  # anybody may have made that directory
        if text := tail(directory / name, _LINES, owner_uid=ray_uid):
            found[f"ray/{name}"] = text
    return {name: mask(text) for name, text in found.items()}


def mask(text: str) -> str:
    """``text`` without secrets: those that are known, and what looks like one. What is JSON stays JSON.

    In pieces, so that a daemon's other threads get their turn: a search holds the interpreter until it is done.
    """
    return _masked(redact(text))


def _masked(text: str) -> str:
    """JSON as a whole or line by line; the lines between as one text, in which a secret may have several of them."""
    if text.startswith(("{", "[")) and (document := _masked_json(text)) is not None:
        return document
    found: list[str] = []
    plain: list[str] = []
    for line in text.split("\n"):
        document = None
        if line.startswith("{"):
            document = _masked_json(line) if _HINT.search(line) else line
        if document is None:
            plain.append(line)
            continue
        if plain:
            found.append(_masked_text("\n".join(plain)))
            plain = []
        found.append(document)
    if plain:
        found.append(_masked_text("\n".join(plain)))
    return "\n".join(found)


def _masked_text(text: str) -> str:
    if _WORD.fullmatch(text):  # most of what JSON is made of
        return text
    text = _PRIVATE_KEY.sub(r"\1***", _END_OF_PRIVATE_KEY.sub("***", text))
    text = _URL_PASSWORD.sub(r"\1***@", _TOKEN.sub("***", text))
    text = _SECRET_BLOCK.sub(r"\1\g<indent>    ***\n", text)
    return _SECRET_VALUE.sub(r"\1***", _SECRET_OPTION.sub(r"\1***", text))


def _masked_json(text: str) -> str | None:
    """None: it is neither an object nor a list."""
    try:
        document = json.loads(text)
        if not isinstance(document, dict | list):
            return None
        return json.dumps(_masked_value(document), indent=2 if "\n" in text.strip() else None)
    except (ValueError, RecursionError):
        return None


def _masked_value(value: Any, *, is_secret: bool = False) -> Any:
    """``is_secret``: its name says so."""
    if isinstance(value, dict):
        return {
            _masked(key): _masked_value(of, is_secret=is_secret or _SECRET_NAME.search(key) is not None)
            for key, of in value.items()
        }
    if isinstance(value, list):
        options = ["", *value]  # --password, VALUE
        return [
            _masked_value(each, is_secret=is_secret or _is_option(before))
            for before, each in zip(options, value, strict=False)
        ]
    if is_secret and value and not isinstance(value, bool):
        return "***"
    return _masked(value) if isinstance(value, str) else value


def _is_option(value: Any) -> bool:
    return isinstance(value, str) and value.startswith("--") and _SECRET_NAME.search(value) is not None


def _about(paths: Paths, now: datetime, since: timedelta) -> dict[str, Any]:
    return {
        "made_at": now.isoformat(timespec="seconds"),
        "flight_recorder_of_the_last_s": since.total_seconds(),
        "flight_recorder_begins": {file.name: recorded_since(file) for file in sorted(paths.recorder.glob("*"))},
        "edgelink": __version__,
        "python": platform.python_version(),
        "system": platform.platform(),
        "machine": platform.machine(),
        "hostname": platform.node(),
        "cpus": os.cpu_count(),
    }


def hide_secrets(paths: Paths) -> None:
    """Have everything masked that lies on this node and is secret."""
    with suppress(EdgelinkError):
        Membership.load(paths)  # hides what it holds
    for file in _secret_files(paths):
        text = read_end(file, max_bytes=_MAX_SECRET_BYTES).decode(errors="replace")
        hide(*(line.strip() for line in text.splitlines() if "-----" not in line))


def _secret_files(paths: Paths) -> Iterator[Path]:
    """By name: whoever owns a directory below ours, as the broker's user does, could put anything there."""
    yield from (paths.node_key, paths.state / "ray_token", paths.broker_admin_key, paths.ray_token_copy)
    yield from paths.authority_keys.glob("*.key")
