"""A whole EdgeLink installation on one machine: relay, cloud and NAT'd edges in namespaces of their own.

:class:`Lab` builds it, runs things in it and removes every trace of it. Everything it needs to do so is found again
from its name, so ``edgelink lab exec`` and ``lab down`` work from another process, and after a crash at any moment.
Synchronous; from async code call it through a thread.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
from collections.abc import Mapping, Sequence
from ipaddress import IPv4Interface
from pathlib import Path
from typing import Any, NoReturn

from edgelink.errors import DeadlineError, LabError, MissingDependencyError
from edgelink.lab import login_environment, mount_points, namespaces, node_files, wan
from edgelink.lab.processes import (
    PinnedProcess,
    kill_all_in,
    namespace_id,
    pids_in,
    wait_gone,
)
from edgelink.lab.state import LAB_ROOT, LabState, locked_lab, locked_root
from edgelink.lab.topology import RELAY, LabNode, Link, NodeKind, Topology, build_topology
from edgelink.lab.wan_conditions import WanConditions
from edgelink.process.becoming import become
from edgelink.process.identity import marked_pids

DEFAULT_NAME = "lab"
_NAME_PATTERN = re.compile(r"[a-z0-9]([a-z0-9-]{0,30}[a-z0-9])?")
_HOLDER_MARKER = "EDGELINK_LAB_HOLDER"  # finds a holder that was started but not yet recorded


class Lab:
    """One named lab; several can exist side by side.

    Args:
        name: lower-case letters, digits and dashes.
        extra_path: directories that every node has on its PATH besides the system's and our own interpreter's,
            such as that of easytier-core.
    """

    def __init__(self, name: str = DEFAULT_NAME, *, extra_path: Sequence[Path] = ()) -> None:
        if not _NAME_PATTERN.fullmatch(name):
            raise LabError(
                f"a lab cannot be named {name!r}", hint="use lower-case letters, digits and dashes, up to 32"
            )
        self.name = name
        self.directory = LAB_ROOT / name
        self._extra_path = tuple(extra_path)
        self._children: list[subprocess.Popen[bytes]] = []

    # -- building and removing

    def up(
        self,
        edges: int = 2,
        *,
        direct: bool = False,
        spare_uplinks: bool = False,
        nat: Mapping[str, str] | None = None,
        relays: int = 1,
        accelerators: bool = False,
        ray_python: Path | None = None,
        shm_size: str = "1g",
        config: Mapping[str, Any] | None = None,
        wan_conditions: Mapping[str, str | None] | None = None,
    ) -> None:
        """Build the network and the nodes; starts no daemon. What is half built is removed again on failure.

        Args:
            direct: one routed network without NAT, on which the overlay finds direct paths.
            spare_uplinks: give every edge a second uplink behind another NAT, see :meth:`move_uplink`.
            nat: kind of NAT by site, "cone" or "symmetric"; those sites reach each other's public addresses.
            relays: machines with a public address: "relay", "relay-2" …
            accelerators: let programs in the nodes see the machine's accelerators.
            config: merged into every node's configuration file.
            wan_conditions: of every edge's way to the internet, as for :meth:`set_wan`.
        """
        namespaces.check_prerequisites()
        topology = build_topology(edges, direct=direct, spare_uplinks=spare_uplinks, nat=nat, relays=relays)
        of_edges = WanConditions().changed(wan_conditions or {})
        with locked_root():
            if self._exists():
                raise LabError(f"lab {self.name} is already there", hint="`edgelink lab down` removes it")
            state = LabState(edges, direct, accelerators, spare_uplinks, dict(nat or {}), shm_size, relays)
            file = node_files.node_config(ray_python=ray_python, accelerators=accelerators, overrides=config)
            try:
                self._build(topology, state, file)
                if of_edges != WanConditions():
                    state.wan = {node.name: of_edges for node in topology.nodes if node.kind is NodeKind.EDGE}
                    wan.apply(self, state)
                    state.save(self._state_file)
            except BaseException:
                self._remove()
                raise

    def _build(self, topology: Topology, state: LabState, config: Mapping[str, Any]) -> None:
        self.directory.mkdir(mode=0o700)
        state.save(self._state_file)
        mount_points.make_missing(LAB_ROOT / ".made-mount-points")
        namespaces.create_netns(self.name, topology.nodes)
        for node in topology.nodes:
            own = config
            if node.kind is NodeKind.RELAY and node.name != RELAY:
                own = {**config, "relay": {**config["relay"], "advertise": [str(topology.address(node.name))]}}
            node_files.write_node_files(self.node_directory(node.name), node.name, own)
        self._switch_on(topology.nodes, topology.links, state)
        state.is_complete = True
        state.save(self._state_file)

    def _switch_on(self, nodes: Sequence[LabNode], links: Sequence[Link], state: LabState) -> None:
        """Hold the network namespaces of ``nodes``, which exist, and connect them."""
        environ = {"PATH": login_environment.SYSTEM_PATH, _HOLDER_MARKER: self.name}
        holders = namespaces.start_holders(
            {n.name: namespaces.holder_spec(self.name, n, self.node_directory(n.name), state.shm_size) for n in nodes},
            environ,
        )
        self._children.extend(holders.values())
        state.holders |= {name: PinnedProcess.of(child.pid) for name, child in holders.items()}
        namespaces.connect(self.name, nodes, links)
        for node in nodes:
            if node.firewall:
                namespaces.apply_firewall(state.holders[node.name], node)

    def reboot(self, node: str) -> None:
        """Cut a machine's power and switch it on again; returns once it has its network. Starts no daemon.

        All its processes die at once, unasked. Its disk stays (/etc and /var/lib of EdgeLink, also Ray's), /run and
        /dev/shm are empty, addresses and links are as before. Unlike a real reboot it leaves the boot id as it is.
        """
        machine = self.topology.node(node)
        if machine.is_router:
            raise LabError(f"lab node {node} is a router: only the relay, the cloud and edges are rebooted")
        with locked_lab(self.directory):
            state, path = self.state, namespaces.netns_path(self.name, node)
            kill_all_in([path])
            self._children = [child for child in self._children if child.poll() is None]  # this reaps
            links = [link for link in self.topology.links if node in (link.near.node, link.far.node)]
            namespaces.disconnect(self.name, links)
            namespaces.remove_netns(path)
            node_files.clear_runtime(self.node_directory(node))
            state.daemons.pop(node, None)
            namespaces.create_netns(self.name, [machine])
            self._switch_on([machine], links, state)
            state.save(self._state_file)
            self._apply_wan(state)

    def down(self) -> None:
        """End every process of the lab and remove what it made. Idempotent; also removes a half-built lab."""
        if LAB_ROOT.exists() or namespaces.existing_netns(self.name):
            namespaces.check_root()
            with locked_root(), locked_lab(self.directory):
                self._remove()

    def _remove(self) -> None:
        networks = namespaces.existing_netns(self.name)
        if namespace_id("/proc/self/ns/net") in {namespace_id(path) for path in networks}:
            raise LabError("a lab cannot be removed from inside one of its nodes", hint="leave the node's shell first")
        marker = f"{_HOLDER_MARKER}={self.name}"
        kill_all_in(networks, lambda: set(marked_pids(marker)))
        for child in self._children:
            child.wait()  # the kernel has already ended them; this reaps
        self._children.clear()
        for path in networks:
            namespaces.remove_netns(path)
        if self.directory.exists():
            mount_points.unmount_below(self.directory)
            shutil.rmtree(self.directory)
        mount_points.remove_made(LAB_ROOT / ".made-mount-points")

    # -- looking

    @property
    def _state_file(self) -> Path:
        return self.directory / "state.json"

    def _exists(self) -> bool:
        return self.directory.exists() or bool(namespaces.existing_netns(self.name))

    @property
    def state(self) -> LabState:
        """Raises LabError when the lab is not up."""
        namespaces.check_root()
        try:
            state = LabState.load(self._state_file)
        except FileNotFoundError as error:
            raise LabError(f"lab {self.name} is not up", hint="`edgelink lab up` builds it") from error
        if not state.is_complete:
            raise LabError(f"lab {self.name} is half built", hint="`edgelink lab down`, then `edgelink lab up`")
        return state

    @property
    def topology(self) -> Topology:
        state = self.state
        return build_topology(
            state.edges,
            direct=state.direct,
            spare_uplinks=state.spare_uplinks,
            nat=state.nat,
            relays=state.relays,
        )

    def node_directory(self, node: str) -> Path:
        return self.directory / node

    def host_path(self, node: str, path: Path) -> Path:
        """Where on the host a file of the node under /etc/edgelink, /var/lib/edgelink, … lies."""
        for target in mount_points.MOUNT_POINTS:
            if path.is_relative_to(target):
                copy = node_files.private_copy(self.node_directory(node), target)
                return copy / path.relative_to(target)
        return path

    def daemon_log(self, node: str) -> Path:
        return self.node_directory(node) / "daemon.log"

    def _holder(self, node: str) -> PinnedProcess:
        state = self.state
        self.topology.node(node)
        holder = state.holders[node]
        if not holder.is_alive:
            raise LabError(
                f"lab {self.name}: the process that holds node {node} is gone",
                hint="`edgelink lab down`, then `edgelink lab up`",
            )
        return holder

    def pids(self, node: str) -> set[int]:
        """Every process of the node but the one that holds its namespaces."""
        holder = self._holder(node)
        identities = (namespace_id(f"/proc/{holder.pid}/ns/{kind}") for kind in ("net", "mnt"))
        return pids_in({identity for identity in identities if identity}) - {holder.pid}

    def daemon(self, node: str) -> PinnedProcess | None:
        """The running daemon that ``start`` started, if any."""
        process = self.state.daemons.get(node)
        return process if process and process.is_alive else None

    def status(self) -> list[dict[str, Any]]:
        """One row a node: name, kind, addresses by device, number of processes, pid of its daemon."""
        return [
            {
                "node": node.name,
                "kind": str(node.kind),
                "addresses": {
                    device: [str(address) for address in found]
                    for device, found in namespaces.addresses(namespaces.netns_path(self.name, node.name)).items()
                    if device != "lo"
                },
                "wan": str(self.state.wan.get(node.name, "")),
                "processes": len(self.pids(node.name)),
                "daemon_pid": daemon.pid if (daemon := self.daemon(node.name)) else None,
            }
            for node in self.topology.nodes
        ]

    # -- running things

    def environment(self, node: str, extra: Mapping[str, str] | None = None) -> dict[str, str]:
        """What somebody who logs in on the node has: nothing of the caller's but the kind of terminal."""
        return login_environment.environment(
            self.name,
            node,
            home=self.node_directory(node) / "home",
            extra_path=self._extra_path,
            accelerators=self.state.accelerators,
        ) | dict(extra or {})

    def _argv(self, node: str, argv: Sequence[str], directory: Path | None) -> list[str]:
        return namespaces.enter_argv(self._holder(node), directory or Path.cwd(), argv)

    def exec(
        self,
        node: str,
        argv: Sequence[str],
        *,
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
        capture: bool = False,
        stdin: str | None = None,
        timeout_s: float | None = None,
        check: bool = False,
    ) -> subprocess.CompletedProcess[str]:
        """Run ``argv`` in the node and wait for it.

        Its standard streams are ours unless ``capture`` or ``stdin`` say otherwise. With ``check`` a status other
        than 0 is a LabError that carries the captured output.

        Raises:
            DeadlineError: it ran longer than ``timeout_s`` and was killed.
        """
        try:
            result = subprocess.run(
                self._argv(node, argv, cwd),
                env=self.environment(node, env),
                input=stdin,
                capture_output=capture,
                text=True,
                timeout=timeout_s,
                check=False,
            )
        except subprocess.TimeoutExpired as error:
            raise DeadlineError(f"on lab node {node}, {' '.join(argv)} did not end within {timeout_s:g} s") from error
        if check and result.returncode != 0:
            words = f": {(result.stdout + result.stderr).strip()}" if capture else ""
            raise LabError(f"on lab node {node}, {' '.join(argv)} ended with status {result.returncode}{words}")
        return result

    def enter(self, node: str, argv: Sequence[str]) -> NoReturn:
        """Become ``argv`` in the node: what a command line does, so that signals and terminal are its own."""
        command = self._argv(node, argv, None)
        become(command[0], command, self.environment(node))

    def popen(
        self,
        node: str,
        argv: Sequence[str],
        log: Path,
        *,
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
        stdout: int | None = None,
    ) -> subprocess.Popen[bytes]:
        """Start ``argv`` in the node in a session of its own, output appended to ``log`` (0600); it outlives us.

        With ``stdout=subprocess.PIPE`` its standard output comes to us, and only what it complains of to ``log``.
        """
        descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        with os.fdopen(descriptor, "wb") as output:
            child = subprocess.Popen(
                self._argv(node, argv, cwd),
                env=self.environment(node, env),
                stdin=subprocess.DEVNULL,
                stdout=output if stdout is None else stdout,
                stderr=output,
                start_new_session=True,
            )
        self._children.append(child)
        return child

    # -- the network, while it is used

    def set_wan(self, nodes: Sequence[str], texts: Mapping[str, str | None]) -> dict[str, str]:
        """Make the ways of machines to the internet long, lossy or narrow; what ``texts`` does not name stays.

        Args:
            texts: "rtt", "jitter", "loss", "rate", with their units; see :class:`WanConditions`.

        Returns:
            By machine, its conditions in words; empty where its way adds nothing.

        Raises:
            LabError: no such machine, no such condition, or the kernel has no means for it; the links are as before.
        """
        with locked_lab(self.directory):
            state = self.state
            before = dict(state.wan)
            for node in nodes:
                if self.topology.node(node).is_router:
                    raise LabError(f"lab node {node} is a router", hint="name the machine behind it")
                state.wan[node] = state.wan.get(node, WanConditions()).changed(texts)
            try:
                self._apply_wan(state)
            except BaseException:
                state.wan = {node: before.get(node, WanConditions()) for node in state.wan}
                with contextlib.suppress(LabError, MissingDependencyError):  # the reason is told already
                    self._apply_wan(state)
                raise
            return {node: str(state.wan[node]) for node in nodes}

    def _apply_wan(self, state: LabState) -> None:
        try:
            wan.apply(self, state)
        finally:
            state.save(self._state_file)  # also then: a delayer may have been started

    def move_uplink(self, node: str, *, keep_old: bool = False) -> IPv4Interface:
        """Switch an edge to its other uplink, as from Wi-Fi to LTE: another device, address and NAT.

        Args:
            keep_old: leave the old device up with its address, and only lead the default route elsewhere.

        Returns:
            The edge's new address.

        Raises:
            LabError: the lab was built without ``spare_uplinks``, or the node is no edge.
        """
        links = self.topology.uplinks(node)
        if len(links) != 2:
            raise LabError(f"lab node {node} has no other uplink", hint="build the lab with spare_uplinks=True")
        namespace = namespaces.netns_path(self.name, node)
        device = namespaces.default_device(namespace)
        old, new = links if links[0].near.device == device else links[::-1]
        namespaces.move_uplink(namespace, old.near, new.near, new.far.address.ip, keep_old=keep_old)
        return new.near.address

    # -- the nodes' daemons

    def start(self, node: str, args: Sequence[str] = (), *, env: Mapping[str, str] | None = None) -> PinnedProcess:
        """Start the node's daemon (``edgelink relay``, ``head`` or ``edge``), its output to ``daemon_log``."""
        verb = self._daemon_verb(node)
        if running := self.daemon(node):
            raise LabError(f"lab node {node}: its daemon already runs, pid {running.pid}")
        child = self.popen(node, ["edgelink", verb, *args], self.daemon_log(node), env=env, cwd=Path("/"))
        try:
            process = PinnedProcess.of(child.pid)
        except ProcessLookupError as error:
            raise LabError(f"lab node {node}: its daemon ended at once", hint=f"see {self.daemon_log(node)}") from error
        with locked_lab(self.directory):
            state = self.state
            state.daemons[node] = process
            state.save(self._state_file)
        return process

    def _daemon_verb(self, node: str) -> str:
        if verb := self.topology.node(node).daemon:
            return verb
        raise LabError(f"lab node {node} is a router: it runs no daemon")

    def stop(self, node: str, *, timeout_s: float = 60) -> None:
        """SIGTERM to the node's daemon, which ends what it started; returns when it has gone. Idempotent."""
        self._signal_daemon(node, signal.SIGTERM, timeout_s)

    def kill(self, node: str) -> None:
        """SIGKILL to the node's daemon alone; its EasyTier and Ray stay."""
        self._signal_daemon(node, signal.SIGKILL, 10)

    def _signal_daemon(self, node: str, number: signal.Signals, timeout_s: float) -> None:
        self._daemon_verb(node)
        if not (process := self.daemon(node)):
            return
        with contextlib.suppress(ProcessLookupError):
            os.kill(process.pid, number)
        if not wait_gone(process, timeout_s):
            raise LabError(
                f"lab node {node}: its daemon (pid {process.pid}) did not end within {timeout_s:g} s of {number.name}",
                hint=f"see {self.daemon_log(node)}",
            )
        for child in self._children:
            if child.pid == process.pid:
                child.wait()  # a zombie would keep the pid
