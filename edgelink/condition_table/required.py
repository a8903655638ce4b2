"""The conditions that decide whether a node is ready, in the order in which it comes up."""

from __future__ import annotations

from edgelink.condition_table.kind import EVERYWHERE, NODES, ConditionKind, Place, Reason, idle, true, unknown, waits

LEASED = ConditionKind(
    "Leased",
    "overlay IP, hostname and rank are granted and on disk",
    required_on=EVERYWHERE,
    reasons=(
        true("Leased", "this machine is the node that holds the lease"),
        true(
            "MachineChanged",
            "likewise, and this node ran on another machine before",
            "nothing, if the disk was moved on purpose",
        ),
        true(
            "LeaseChangeWaits",
            "the operator has changed it, and somebody still works here under the present one",
            "nothing: it is taken up when nobody works here any more",
        ),
        waits("RegistryUnavailable", "the relay cannot be asked for a lease; it is tried again", ""),
        waits(
            "OtherMachine",
            "the node was running on another machine a moment ago; the registry looks whether it is still there: a "
            "second as a rule, a minute (metered: three) after it was lost, longer while somebody still has its "
            "address in the overlay: an EasyTier whose daemon is dead",
        ),
        Reason(
            "ClonedNode",
            "the node is running on another machine, which is named with the time since when: this disk, or that one, "
            "is a copy. The daemon ends with status 78, EasyTier was not started",
            "[free one of the two](../how-to/disk-images.md)",
        ),
        Reason("NodeRevoked", "the operator has put this node out of the network; its daemon ends with it"),
    ),
    note="At each start, and in each session with the registry, a node says on which machine it runs "
    "([copies of a disk](../explanation/security.md#copies-of-a-disk)). [AddressesUnique](#addressesunique) tells of "
    "copies that run at the same time all the same. A refused enrolment ends the daemon, with one of "
    "[these reasons](#why-an-enrolment-is-refused).",
)
BROKER_RUNNING = ConditionKind(
    "BrokerRunning",
    "Mosquitto serves",
    required_on=(Place.RELAY,),
    reasons=(
        true("Running", "Mosquitto runs, and answers"),
        Reason("DependencyMissing", "no usable Mosquitto on this machine"),
        Reason("PortBusy", "another process has the broker's port"),
        Reason("ProcessStartFailed", "Mosquitto did not start"),
        Reason("ProcessExited", "Mosquitto ended; it is started anew"),
        Reason(
            "CrashLoop",
            "it ended again and again; its last words are in the sentence, pauses between starts grow",
            "mend what its last words say",
        ),
        Reason("ProcessStopTimedOut", "it cannot be ended"),
    ),
)
REGISTRY_CONNECTED = ConditionKind(
    "RegistryConnected",
    "the relay's broker answers, its chain is our network's",
    required_on=EVERYWHERE,
    reasons=(
        true("Connected", "in session with the relay's broker"),
        true("Serving", "on the relay itself: enrolments are served"),
        waits("RegistryUnavailable", "the relay's broker does not answer; it is tried again", ""),
        Reason("RegistryAuthRefused", "the broker does not accept this node's password"),
        Reason("RegistryFailed", "the registry or its broker could not do something; the sentence says what"),
        Reason("RegistryDamaged", "on the relay: the registry's database is damaged"),
        Reason("RegistryReplaced", "what answers is a registry with an older state than this node has seen"),
        Reason("Untrusted", "what answers is not this network's registry"),
    ),
)
OVERLAY_UP = ConditionKind(
    "OverlayUp",
    "the kernel says: the device exists, is up, has exactly our address",
    required_on=EVERYWHERE,
    note="On a relay it only informs with an overlay that is there already (`overlay.kind: existing`).",
    reasons=(
        true("DeviceConfirmed", "the device is as it should be"),
        waits(
            "AsksRegistry",
            "EasyTier is not started before the registry has said that no other machine is this node, for three "
            "seconds at most",
        ),
        waits("NoLease", "on its way up: no lease yet"),
        waits("Starting", "on its way up: EasyTier starts"),
        waits("Replacing", "EasyTier is started anew with its new configuration"),
        waits("Stopped", "on its way down"),
        Reason("EasyTierNotFound", "no usable easytier-core on this machine"),
        Reason("EasyTierTooOld", "the easytier-core on this machine is older than 2.6.0"),
        Reason("TunMissing", "the machine does not let us make the device: no /dev/net/tun"),
        Reason("NetAdminMissing", "the machine does not let us make the device: no CAP_NET_ADMIN"),
        Reason(
            "NetRawMissing",
            "the machine does not let us bind sockets to the device: no CAP_NET_RAW, and Linux before 5.7",
        ),
        Reason("CidrCollision", "the overlay's network is in use for something else here"),
        Reason(
            "RouteElsewhere",
            "the kernel sends what is for another node by another device: a rule before EdgeLink's own leads there, or "
            "this machine has that node's overlay address",
            "what the sentence says: it names the rule, route or device, and who made it",
        ),
        Reason("DeviceBusy", "the device is in use for something else"),
        Reason("PortBusy", "a port of EasyTier's is in use for something else"),
        Reason("ProcessStartFailed", "EasyTier did not start"),
        Reason("ProcessExited", "EasyTier ended; it is started anew"),
        Reason("InterfaceNotReady", "EasyTier made no device"),
        Reason(
            "CrashLoop",
            "it ended three times within five minutes; its last words are in the sentence, pauses between starts grow "
            "to 30 s",
            "mend what its last words say",
        ),
        Reason("ProcessStopTimedOut", "it cannot be ended"),
        *(
            waits(
                name,
                f"{what}; it is mended within a second, in place where EasyTier still holds the device",
                "nothing; where it comes again and again: find who changes it",
            )
            for name, what in (
                ("DeviceMissing", "the device is gone"),
                ("DeviceDown", "the device is down"),
                ("AddressMissing", "the device has not our address"),
                ("AddressWrong", "the device has another address"),
                ("MtuWrong", "the device has another MTU"),
                ("RouteMissing", "the overlay's route is gone"),
            )
        ),
        waits(
            "DeviceReplaced",
            "another process has made a device of that name; EasyTier is started anew, or `DeviceBusy` names "
            "the process",
        ),
        waits(
            "UplinkChanged",
            "this machine has another uplink than EasyTier uses: EasyTier is started anew",
        ),
    ),
)
PEERS_REACHABLE = ConditionKind(
    "PeersReachable",
    "the head and at least one relay answer over the overlay, from our overlay address",
    required_on=NODES,
    informs_on=(Place.ADDITIONAL_RELAY,),
    reasons=(
        true("Reachable", "all that have to answer do"),
        unknown("OverlayDown", "on its way: no device yet"),
        unknown("DirectoryNotSeen", "on its way: nobody known to be asked"),
        unknown("Connecting", "on its way: EasyTier is dialling"),
        Reason(
            "PeerNotWhoItSays",
            "somebody else answers at the overlay address of the node that is named: nothing but echoes passes to or "
            "from that address, and Ray does not start; it ends by itself once the right node answers",
            "find who else has that address: [AddressesUnique](#addressesunique) on relay and head; "
            "[revoke](../how-to/revoke.md) that node",
        ),
        Reason("PeerSilent", "some answer, the one that is named does not", "look at `edgelink status` there"),
        Reason(
            "RelayUnreachable",
            "EasyTier gets no connection to the relay: nothing listens there, no answer, no way, or no such name",
            "what the sentence says; does the relay's daemon run there, and is its port open?",
        ),
        Reason(
            "NetworkRefused",
            "the relay ends EasyTier's connection in the handshake: another network's, or another secret",
            "was the relay made anew? `edgelink join` again with a new token",
        ),
        Reason(
            "WrongNetwork",
            "a relay carries EasyTier as a stranger's network: connected, and nobody there",
            "look where the relay's address leads, or `edgelink join` again with a new token",
        ),
        Reason(
            "NobodyAnswers",
            "EasyTier is connected, and yet nobody answers",
            "look at the firewall and at `edgelink status` of relay and head",
        ),
        Reason(
            "RouteElsewhere",
            "this machine sends what is for them by another device than the overlay's",
            "see [OverlayUp](#overlayup)",
        ),
        Reason(
            "MtuBlackHole",
            "small packets reach the relay, full ones do not, and no router on the way says so",
            "`net.ipv4.tcp_mtu_probing=1` on both ends (`host.tcp: adjust` sets it), or an uplink that carries more",
        ),
    ),
)
RAY_JOINED = ConditionKind(
    "RayJoined",
    "Ray lists us alive under our address with our rank",
    required_on=NODES,
    reasons=(
        true("AliveInRay", "Ray lists this node"),
        idle("NoRay", "no Ray runs on this node, by its own configuration (`ray: off`): it is Ready without"),
        waits("NoLease", "waits for the node's lease"),
        waits(
            "HeadNotSeen",
            "waits for the head, which has published no cluster spec yet: normal until it starts, and for good where "
            "the head has no Ray (`ray: off`)",
            "`sudo edgelink up` or `edgelink head` starts it there",
        ),
        waits(
            "NotAMember",
            "waits to be taken into the head's cluster spec: it is new there, or the run in progress did not ask for "
            "it (`--nodes`)",
        ),
        waits("WaitingForOverlay", "waits for the overlay"),
        waits("Starting", "on the head: `ray start` is running"),
        waits("Joining", "`ray start` is running"),
        waits("RayStopping", "the head wants no Ray on any node (`edgelink stop --all`): it is being stopped"),
        Reason("RayStopped", "likewise, and it is", "`edgelink restart-ray --all` on the head"),
        waits("RayExited", "Ray ended (with its last words); it is started anew"),
        waits("RayReplaced", "Ray does not fit any more; it is started anew"),
        Reason(
            "CrashLoop",
            "it ended, or did not start, three times within five minutes; its last words are in the sentence, pauses "
            "between starts grow to 60 s",
            "mend what its last words say",
        ),
        Reason(
            "FormerRayAlive",
            "Ray still lists a dead Ray of this node as alive and does not let it be buried; its health checks find "
            "out in minutes",
        ),
        Reason("ConfigInvalid", "no usable interpreter with Ray, or something else in the configuration"),
        Reason("DependencyMissing", "something that Ray needs is not on this machine"),
        Reason("RayTooOld", "the interpreter's Ray is too old"),
        Reason("RayAsRoot", "nobody to run Ray as"),
        Reason(
            "RayTempDir",
            "Ray's user cannot write in the directory that Ray keeps its session in, the head's, or others can",
        ),
        Reason(
            "GcsStoreFull",
            "on the head, with `ray.gcs_store`: the disk of the GCS's tables is full, so the GCS does not run; what "
            "runs goes on, new actors and new nodes wait",
        ),
        Reason("NoGcsStore", "on the head: `ray.gcs_store` is set, and the interpreter's Ray is too old for it"),
        Reason(
            "OutputTooLong",
            "the interpreter prints megabytes when it is asked something, so that its answer cannot be read",
        ),
        Reason("FirewallFailed", "Ray's ports could not be protected, so Ray is not started"),
        Reason("TableFoughtOver", "likewise: somebody takes our nftables table away each time"),
        Reason("VersionMismatch", "this node and the head do not fit: Python or Ray"),
        Reason("RideThroughDisagrees", "this node and the head do not fit: `ride_through`"),
        Reason(
            "NoRayToken",
            "this node and the head do not fit: the cluster spec has no token for this node",
            "`edgelink restart-ray --all` on the head",
        ),
        Reason("Untrusted", "this node and the head do not fit: the token cannot be opened"),
        Reason("HeadUnreachable", "the head's Ray does not answer"),
        waits("HeadReplaced", "the head's Ray is another one than its cluster spec says"),
        Reason(
            "ClusterTooLarge",
            "on the head: so many nodes hold a rank that what is told of them does not fit into a message",
        ),
        Reason("PortBusy", "a port of Ray's is taken by another process"),
        Reason("RayStartFailed", "`ray start` failed"),
        waits(
            "TooBusyForRay",
            "Ray gave up because its agent needed more than 15 s on this machine; pauses between starts grow to 120 s",
            "nothing; where it stays: stop what else runs here (`uptime`)",
        ),
        Reason("NotListedByRay", "Ray started, and does not list this node"),
        Reason("ProcessStopTimedOut", "a Ray that is to end cannot be ended"),
    ),
)

REQUIRED = (LEASED, BROKER_RUNNING, REGISTRY_CONNECTED, OVERLAY_UP, PEERS_REACHABLE, RAY_JOINED)
