"""An interpreter with a pretended Ray: a shell script that answers the inspection, plays `ray start` and the helper."""

from __future__ import annotations

import json
import random
import shutil
import sys
from pathlib import Path

from edgelink.config import RayConfig
from edgelink.process.ports import is_port_free

_SCRIPT = """#!/bin/sh
# Until the last child is who it is to be, or has ended.
become() {{ while exe=$(readlink /proc/$!/exe) && ! [ "$exe" -ef "$1" ]; do sleep 0.01; done; }}
case "$1" in
-c) [ -n "$3" ] && exec "{python}" -I -S "$@"
  cat "{directory}/versions" ;;
-m)
  echo "$@" >> "{directory}/argv"; env > "{directory}/environ"
  [ -e "{directory}/hangs" ] && exec "{directory}/sleep" 1000
  [ -e "{directory}/fails" ] && {{ echo "no such luck"; cat "{directory}/fails"; exit 1; }}
  [ -e "{directory}/late" ] && exec "{directory}/start_late"
  case "$*" in *--head*)
    "{directory}/gcs_server" 1000 &
    become "{directory}/gcs_server"
    wc -l < "{directory}/argv" > "{directory}/cluster" ;;
  esac
  "{directory}/raylet" 1000 &
  become "{directory}/raylet"
  # Like a worker that setproctitle has given a name and left without a readable environment:
  env -i /bin/bash -c 'exec -a ray::IDLE "{directory}/sleep" 1000' &
  become "{directory}/sleep"
  ;;
*)
  echo "$2" >> "{directory}/helpers"
  if [ "$2" = later ]; then
    [ -e "{directory}/impatient" ] && exit 0
    read -r question || exit 0
    set -- "$1" $(echo "$question" | tr -d '[]",')
  fi
  echo "$@" >> "{directory}/asked"
  [ -e "{directory}/deaf" ] && exec "{directory}/sleep" 1000
  [ -e "{directory}/broken" ] && {{ echo Traceback; cat "{directory}/broken"; exit 1; }} >&2
  case "$2" in
  watch) cat "{directory}/members"; exec cat ;;
  detached) cat "{directory}/left" || exit 1 ;;
  bury) [ -e "{directory}/undead" ] && {{ echo '{{"left": ["dead"], "failure": "no such call"}}'; exit 1; }}
    temp_dir=$(cat "{directory}/temp_dir" 2>/dev/null)
    echo '{{"buried": [], "cluster_id": "'$(cat "{directory}/cluster")'", "temp_dir": "'$temp_dir'"}}' ;;
  *) [ -e "{directory}/unlisted" ] && exit 1
    [ -e "{directory}/disowned" ] && {{ echo '{{"nodes": []}}'; exit 1; }}
    echo '{{"node_id": "f00d", "cluster_id": "'$(cat "{directory}/cluster")'"}}' ;;
  esac ;;
esac
"""

# A raylet waits for the port file of its agent, and `ray start` for the raylet.
_START_LATE = """#!/bin/sh
exec 3>&1 >"{directory}/raylet.out"
"{directory}/shell/raylet" "{directory}/late_raylet" --session_dir={directory} --node_id=f00d 3>&- &
exec >&3
raylet=$!
while [ -d /proc/$raylet ] && ! [ -e "{directory}/registered" ]; do sleep 0.01; done
[ "$(cat "{directory}/late")" = serves ] && exit 0
echo "Exception: The current node timed out during startup. This could happen because some of the raylet failed"
exit 1
"""
_LATE_RAYLET = """
while ! [ -e "{directory}/dashboard_agent_listen_port_f00d" ]; do sleep 0.01; done
[ "$(cat "{directory}/late")" = aborts ] && {{ cat "{directory}/last_words"; exit 1; }}
touch "{directory}/registered"
while :; do sleep 1000; done
"""
# Of a raylet of Ray 2.60 whose agent was held back.
GAVE_UP_ON_AGENT = (
    "[2026-11-27 00:11:29,814 C 31062 31062] (raylet) node_manager.cc:3588:  An unexpected system state has occurred. "
    "You have likely discovered a bug in Ray. Please report this issue at https://github.com/ray-project/ray/issues "
    "and we'll work with you to fix it. Check failed: statussetor3588.has_value() Timed out waiting for file "
    "/tmp/ray/session_2026-11-27_00-11-13_763679_30939/dashboard_agent_listen_port_"
    "870afd9edd0e09b1b08dba62635fe723d367d290d91ce67304480359\n*** StackTrace Information ***\n"
)


class FakeRay:
    """``python`` is the interpreter; files beside it steer it: ``fails`` (its words), ``hangs``,
    ``impatient`` (a helper that is to wait for its question does not), ``unlisted`` (Ray cannot be asked),
    ``broken`` (the helper's last words), ``deaf`` (it gets no answer), ``left`` (its answer about detached actors),
    ``disowned`` (it answers no), ``undead``, ``members``, ``cluster`` (its id), ``temp_dir``
    (the head's), ``late`` (its agent is: the raylet ``aborts``, ``serves``, or
    ``serves unseen`` by `ray start`)."""

    def __init__(self, directory: Path) -> None:
        directory.mkdir()
        self.directory = directory
        (directory / "cluster").write_text("one")
        self.install()
        self.python = directory / "python3"
        self.python.write_text(_SCRIPT.format(directory=directory, python=sys.executable))
        self.python.chmod(0o755)
        (directory / "shell").mkdir()
        shutil.copy(str(shutil.which("sh")), directory / "shell/raylet")
        (directory / "last_words").write_text(GAVE_UP_ON_AGENT)
        for name, script in (("start_late", _START_LATE), ("late_raylet", _LATE_RAYLET)):
            (directory / name).write_text(script.format(directory=directory))
            (directory / name).chmod(0o755)
        for name in ("raylet", "gcs_server", "sleep"):
            shutil.copy(str(shutil.which("sleep")), directory / name)

    def install(self, *, ray: str = "2.60.0", **packages: str) -> None:
        """What the interpreter has from now on."""
        (self.directory / "versions").write_text(json.dumps(["3.11.7", ray, False, [], packages]))

    @property
    def starts(self) -> list[str]:
        return self._lines("argv")

    @property
    def questions(self) -> list[str]:
        return self._lines("asked")

    @property
    def helpers(self) -> list[str]:
        """What each process was started for."""
        return self._lines("helpers")

    @property
    def environment(self) -> dict[str, str]:
        return dict(line.split("=", 1) for line in self._lines("environ"))

    def _lines(self, name: str) -> list[str]:
        path = self.directory / name
        return path.read_text().splitlines() if path.exists() else []


def ray_config(python: Path, **values: object) -> RayConfig:
    """A configuration whose ports are free on this machine."""
    keys = ("port", "node_manager_port", "object_manager_port", "runtime_env_agent_port", "dashboard_agent_grpc_port")
    keys += ("dashboard_agent_listen_port", "metrics_export_port", "client_server_port", "dashboard_port")
    # Below the ports that connections get by themselves, of which some are busy for a minute after their end.
    free = (port for port in random.sample(range(21000, 32000), 1000) if is_port_free("tcp", "0.0.0.0", port))
    return RayConfig.model_validate(
        {"python": python, "allow_root": True, **dict(zip(keys, free, strict=False)), **values}
    )
