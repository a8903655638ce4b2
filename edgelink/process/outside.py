"""Run a short program of this machine's people outside of the daemon's own unit, whose sandbox is not theirs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence


def outside_of_unit(
    argv: Sequence[str],
    environment: Mapping[str, str],
    *,
    uid: int | None,
    gid: int | None,
    groups: Sequence[int],
    for_at_most_s: float,
) -> list[str]:
    """A command for root that runs ``argv`` as a transient unit, hands its output on and ends with its status; pure.

    Args:
        environment: of the program; everybody may read it (`systemctl show`), so it holds no secret.
        uid, gid, groups: whom it runs as; None: root.
        for_at_most_s: systemd ends it after that, and all that it has started, also when the command itself is gone.
    """
    command = ["systemd-run", "--quiet", "--pipe", "--wait", "--collect", "--no-ask-password"]
    settings = ["WorkingDirectory=/", "KillMode=control-group", f"RuntimeMaxSec={max(for_at_most_s, 0.1):.1f}s"]
    if uid is not None:
        settings += [f"User={uid}", f"Group={uid if gid is None else gid}"]
        if groups:
            settings.append(f"SupplementaryGroups={' '.join(map(str, groups))}")
    command += [f"--property={setting}" for setting in settings]
    command += [f"--setenv={name}={value}" for name, value in environment.items()]
    # systemd would replace $NAME in the arguments, whoever gives them.
    return [*command, "--", argv[0], *(argument.replace("$", "$$") for argument in argv[1:])]
