"""What systemd lets a transient unit do: properties of the sandbox, none of them newer than systemd 245.

Ray has none. What people run in it uses GPUs and their drivers' helpers (setuid, modules), cameras, serial ports and
CAN buses, compiles code, writes to wherever they say, and starts containers; it runs as a user, who bounds it.
"""

from __future__ import annotations

from edgelink.process.launcher import ProcessSpec

_BOTH = (
    "NoNewPrivileges=yes",
    "ProtectSystem=strict",
    "PrivateMounts=yes",
    "PrivateTmp=yes",
    "ProtectKernelModules=yes",
    "ProtectKernelLogs=yes",
    "ProtectControlGroups=yes",
    "ProtectKernelTunables=yes",
    "ProtectHostname=yes",
    "ProtectClock=yes",
    "LockPersonality=yes",
    "MemoryDenyWriteExecute=yes",
    "RestrictRealtime=yes",
    "RestrictSUIDSGID=yes",
    "RestrictNamespaces=yes",
    "SystemCallArchitectures=native",
    "SystemCallFilter=@system-service",
    "SystemCallErrorNumber=EPERM",
)
_TUN = (
    # It is root, for the device; its program may lie in somebody's home.
    "CapabilityBoundingSet=CAP_NET_ADMIN CAP_NET_RAW CAP_NET_BIND_SERVICE CAP_DAC_READ_SEARCH",
    "ProtectHome=read-only",
    "DevicePolicy=closed",
    "DeviceAllow=/dev/net/tun rw",
    "ReadWritePaths=-/proc/sys/net",
    "RestrictAddressFamilies=AF_UNIX AF_INET AF_INET6 AF_NETLINK AF_PACKET",
)
_SERVER = (
    "CapabilityBoundingSet=",
    "ProtectHome=yes",
    "PrivateDevices=yes",
    "RestrictAddressFamilies=AF_UNIX AF_INET AF_INET6 AF_NETLINK",
)
_PROGRAM = (  # EdgeLink's own interpreter, which may lie in somebody's home; it gives up being root by itself
    "CapabilityBoundingSet=CAP_SETUID CAP_SETGID",
    "ProtectHome=read-only",
    "PrivateDevices=yes",
    "RestrictAddressFamilies=AF_UNIX AF_INET",
)
_BY_KIND = {"tun": _TUN, "server": _SERVER, "program": _PROGRAM}


def sandbox(spec: ProcessSpec) -> list[str]:
    """Properties of the unit that ``spec`` is started in; it may write in its working directory only. Pure."""
    if spec.sandbox == "none":
        return []
    return [*_BOTH, *_BY_KIND[spec.sandbox], f"ReadWritePaths={spec.cwd}"]
