"""The conditions that only inform: a node is ready without them."""

from __future__ import annotations

from edgelink.condition_table.kind import (
    EVERYWHERE,
    NODES,
    RELAYS,
    ConditionKind,
    Place,
    Reason,
    idle,
    true,
    unknown,
    waits,
)

_MEMBERS = (Place.ADDITIONAL_RELAY, *NODES)

OVERLAY_CPU_NORMAL = ConditionKind(
    "OverlayCpuNormal",
    "EasyTier does not burn CPU while its device is idle",
    informs_on=EVERYWHERE,
    needs_easytier=True,
    reasons=(
        true("Normal", "it works only when there is work"),
        unknown("NotRunning", "no EasyTier of this daemon runs"),
        Reason("EasyTierSpinning", "it burns CPU for nothing", "what the sentence says"),
    ),
)
RELAYS_DIALLED = ConditionKind(
    "RelaysDialled",
    "EasyTier dials every relay that is known",
    informs_on=EVERYWHERE,
    needs_easytier=True,
    reasons=(
        true("AllDialled", "it dials all of them"),
        unknown("OverlayDown", "no device yet"),
        Reason(
            "NotDialledYet",
            "a running EasyTier could not be told of a relay, and dials it from its next start on",
            "nothing; at once: start the daemon anew with its EasyTier",
        ),
    ),
)
ADDRESSES_UNIQUE = ConditionKind(
    "AddressesUnique",
    "every overlay address is claimed by the node that holds its lease alone",
    informs_on=EVERYWHERE,
    needs_easytier=True,
    reasons=(
        true("Unique", "no overlay address is claimed twice"),
        true("StaleTwin", "a node that restarted is still listed twice"),
        unknown("NotAsked", "EasyTier does not answer", "see `OverlayUp`"),
        Reason(
            "AddressClaimedTwice",
            "an address is claimed by a machine that holds no lease of it",
            "stop the one that does not belong there, and run `edgelink up` with a token of its own there",
        ),
        Reason(
            "NodeListedTwice",
            "two copies of one disk, by EasyTier's list: within seconds where both are seen to be alive",
            "stop the copy, `edgelink leave` there, then `edgelink up` with a token of its own",
        ),
        Reason(
            "NodeCloned",
            "on relay and head: two lives of one node's daemon speak to the registry in turns",
            "stop the copy, `edgelink leave` there, then `edgelink up` with a token of its own",
        ),
    ),
)
RELAYS_REACHABLE = ConditionKind(
    "RelaysReachable",
    "every relay answers over the overlay",
    informs_on=_MEMBERS,
    reasons=(
        true("AllAnswer", "all of them answer"),
        Reason(
            "RelaySilent",
            "one is away, another one carries on",
            "look at it; if it is gone for good, `edgelink registry release` it",
        ),
    ),
)
PAIRS_ALIVE = ConditionKind(
    "PairsAlive",
    "no other node is lost to this one while a relay answers both",
    informs_on=NODES,
    needs_easytier=True,
    note="EasyTier from 2.5.0 on can forget a node for ever that was out of reach at the wrong moment.",
    reasons=(
        true("NoneLost", "none is"),
        true("Healed", "one was, and answers again: the sentence says since when, and by what"),
        Reason(
            "PairLost",
            "both reach a relay, and not each other; after 5 s a connection to the relay is closed (where UDP alone "
            "leads there, EasyTier is restarted instead), after 5 s more one side's EasyTier is restarted",
            "nothing; if it stays: a firewall between these two nodes' overlay addresses",
        ),
    ),
)
ECHO_ANSWERED = ConditionKind(
    "EchoAnswered",
    "other nodes that ask whether this one is there get an echo",
    informs_on=EVERYWHERE,
    reasons=(
        true("Answering", "it is served"),
        true("AnotherDaemons", "another daemon of this machine serves it"),
        unknown("NoLease", "no overlay address yet"),
        unknown("OverlayDown", "no device yet"),
        Reason(
            "EchoNotServed",
            "the process that answers ended, as where its port is taken; others still see that the machine is there",
            "free udp port 9749; the sentence names who holds it",
        ),
        Reason("ProcessStartFailed", "the process that answers did not start"),
        Reason("ProcessStopTimedOut", "the one before cannot be ended"),
    ),
)
SECRET_CURRENT = ConditionKind(
    "SecretCurrent",
    "EasyTier runs on the network's present secret; on the relay: all nodes were seen on it",
    informs_on=EVERYWHERE,
    reasons=(
        true("Current", "nothing changes"),
        unknown("NotToldYet", "the registry has not said which secret the network is on"),
        waits("Preparing", "a next secret is told to all nodes, and the network is about to change to it"),
        waits("Holding", "the next secret waits for a robot in motion"),
        waits("Changing", "EasyTier is started on the new secret"),
        waits(
            "TryingNext",
            "the network was about to change; nobody is heard, and EasyTier runs by turns on the next secret",
        ),
        waits("BehindNetwork", "the new secret has not come yet"),
        waits("RegistryBehind", "the registry was restored from an older backup; it makes a fresh secret"),
        Reason(
            "OldSecretInUse",
            "on the relay: nodes were not seen on the present secret yet",
            "nothing, if they are only off: each follows when its daemon is back; `edgelink revoke` one that is lost",
        ),
    ),
)
STUN_SERVING = ConditionKind(
    "StunServing",
    "STUN is answered on all of `relay.stun_ports`",
    informs_on=RELAYS,
    needs_easytier=True,
    reasons=(
        true("Serving", "it is answered"),
        Reason(
            "PortBusy",
            "another process has one of the ports; nodes behind NAT find fewer direct paths",
            "free it, or choose `relay.stun_ports`",
        ),
    ),
)
RAY_CURRENT = ConditionKind(
    "RayCurrent",
    "interpreter, packages and environment are those that Ray was started with",
    informs_on=NODES,
    reasons=(
        true("AsStarted", "nothing was changed"),
        unknown("RayNotRunning", "Ray does not run here"),
        unknown(
            "StartNotNoted",
            "nobody noted what Ray was started from",
            "nothing; `edgelink restart-ray` here, where it has to be known",
        ),
        *(
            Reason(
                name, f"{what}: new workers may run something else than those that run", "`edgelink restart-ray` here"
            )
            for name, what in (
                ("InstalledAfterStart", "packages have changed since Ray was started"),
                ("InterpreterChanged", "the interpreter has changed since Ray was started"),
                ("EnvironmentChanged", "Ray was started with another environment"),
            )
        ),
    ),
)
NODES_READY = ConditionKind(
    "NodesReady",
    "everyone who holds a lease with a rank is alive in Ray with that rank, and answers",
    informs_on=(Place.HEAD,),
    reasons=(
        true("AllAlive", "all of them are"),
        unknown("DirectoryNotSeen", "the relay has not told yet who is in the network"),
        idle("NoRay", "no Ray runs on this head, by its own configuration (`ray: off`)"),
        Reason("NodesMissing", "some are not; the sentence names them", "`edgelink nodes` says why"),
        Reason(
            "NodesPaused",
            "some do not answer, and are alive in Ray because it rides through; the sentence names them",
            "look at their power and uplink; `edgelink nodes` says for how long, and when Ray gives them up",
        ),
    ),
)
DRIVER_RUNNING = ConditionKind(
    "DriverRunning",
    "a run is granted",
    informs_on=(Place.HEAD,),
    reasons=(true("Granted", "a run is in progress"), idle("NoRun", "no run is in progress")),
)
RIDE_THROUGH = ConditionKind(
    "RideThrough",
    "outages cost a pause in full: connections resume as soon as the path is back",
    informs_on=EVERYWHERE,
    note="The message holds the figures: how long an outage may be, and how late connections resume after it.",
    reasons=(
        true("Full", "the kernel is as it has to be"),
        idle(
            "KernelLacksRtoCap",
            "Linux before 6.15: nodes and state survive, connections resume up to the outage's own length later, 120 s "
            "at most",
            "nothing, or a newer kernel",
        ),
        Reason(
            "NotRecorded",
            "what is there now cannot be written to the state directory, so it is not changed: connections resume late",
        ),
        Reason(
            "SysctlReadOnly",
            "connections resume later, because the settings cannot be changed here (container)",
            "set them on the host; `edgelink doctor` names them",
        ),
        idle(
            "Declined",
            "connections resume later, because `host.tcp: leave` says so",
            "nothing, or take that out of the configuration",
        ),
        Reason(
            "RideThroughDisagrees",
            "this node's `ride_through` is not the head's; a node that has not joined yet is refused (`RayJoined`)",
        ),
    ),
)
STATE_RECORDED = ConditionKind(
    "StateRecorded",
    "all that this daemon has to remember is on disk",
    informs_on=EVERYWHERE,
    reasons=(
        true("Recorded", "it is"),
        Reason("NotRecorded", "it is not: the sentence names the files, why, and what to do; it is tried again"),
    ),
    note="On a full disk a daemon goes on, and what was under way with it. What only the next daemon needs is written "
    "when there is room again. What has to be on disk first is not done: a lease is not granted, a run does not begin, "
    "the host's TCP settings stay, a new cluster spec is not published.",
)
SHIELDED = ConditionKind(
    "Shielded",
    "our nftables tables are in place, and Ray asks for a token",
    informs_on=EVERYWHERE,
    note="Not on a relay of an overlay that is there already: nothing is to be closed there.",
    reasons=(
        true("RulesInPlace", "all is closed that is to be"),
        true(
            "PacketsDropped",
            "it is, and within a quarter of an hour packets were dropped that have no business on, or beside, the "
            "overlay's device: the message says from where, where to, by which device, and the likely cause",
        ),
        Reason("FirewallFailed", "a table is not in place around what runs already; the message says what may be open"),
        Reason("DependencyMissing", "likewise: a program for it is not on this machine"),
        Reason(
            "TableFoughtOver",
            "somebody undoes a table of ours each time; it is put back after 1, 2, 4 … 30 s, and no Ray starts "
            "meanwhile. A second daemon in this network namespace?",
        ),
        Reason(
            "SwitchedOff",
            "`firewall: off`; addresses of revoked nodes are not dropped either",
            "take that out of the configuration",
        ),
        Reason(
            "RendezvousOpen",
            "`firewall.rendezvous_ports: []`, or the kernel's `ip_local_port_range` is wider than 32768 – 60999: ports "
            "where a training's processes meet are open",
            "name what to close in `firewall.rendezvous_ports`, or set the sysctl back",
        ),
        Reason(
            "LeftOpen",
            "members were connected to ports of this machine when it first closed, on the overlay, what is not "
            "EdgeLink's; these ports stay open to all members for a week in which the daemon runs",
            "name what is to stay open in `firewall.overlay_allow`; `[]` closes the rest at once",
        ),
        Reason("TokenlessRay", "Ray before 2.52 knows no token: firewall only", "ray 2.52 or later on every node"),
    ),
)

INFORMING = (
    OVERLAY_CPU_NORMAL,
    RELAYS_DIALLED,
    ADDRESSES_UNIQUE,
    RELAYS_REACHABLE,
    PAIRS_ALIVE,
    ECHO_ANSWERED,
    SECRET_CURRENT,
    STUN_SERVING,
    RAY_CURRENT,
    NODES_READY,
    DRIVER_RUNNING,
    RIDE_THROUGH,
    STATE_RECORDED,
    SHIELDED,
)
