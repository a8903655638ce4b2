"""The variables that an app gets beside those of its node: the one place where they are made."""

from __future__ import annotations

from collections.abc import Mapping

from edgelink.launch.apps_file import AppsFile, Where


def app_environment(name: str, file: AppsFile, nodes: Mapping[str, Where]) -> dict[str, str]:
    """Return them, by name, before those of the app's own ``env`` are added."""
    found = {
        "EDGELINK_APP": name,
        "EDGELINK_OVERLAY_IP": nodes[file.apps[name].node].overlay_ip,
        "PYTHONUNBUFFERED": "1",  # what it prints is read by people while it runs
    }
    for other, app in file.apps.items():
        prefix = f"EDGELINK_APP_{other.upper().replace('-', '_')}"
        found[f"{prefix}_HOST"] = nodes[app.node].overlay_ip
        if app.listens:
            found[f"{prefix}_PORT"] = str(app.listens[0])
    return found
