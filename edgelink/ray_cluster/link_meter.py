"""How long and how wide the ways between nodes are, for TCP over the overlay: a part of the exchange before a launch.

Its text goes before that of `exchange.py`, as one program; so it needs the standard library only, and imports nothing
of ours. It judges nothing (:mod:`edgelink.training.trainer.link_budget` does).
"""

import contextlib
import fcntl
import itertools
import os
import select
import socket
import struct
import termios
import threading
import time
from typing import Any

ROUND_TRIPS = 15  # as many small exchanges, or as fit into:
ROUND_TRIPS_S = 2.0
FEWEST_ROUND_TRIPS = 3
MESSAGE_BYTES = 16
STREAM_S = 4.0  # of one direction at most, on a long link longer:
STREAM_ROUND_TRIPS, LONGEST_STREAM_S = 25, 12.0  # two congestion controls, one in the other, take their time
STARTING_SHARE = 1 / 3  # of a stream whose rate never stayed: the congestion control finds its pace
SHORTEST_STREAM_S = 1.0  # the kernel's congestion control has to find its pace
ALL_STREAMS_S = 60.0  # together: of many pairs, each gets less
MOST_BYTES = 16 << 20
WINDOWS = 4  # of this many in a row …
AGREE = 0.1  # … the rates differ by so much: that is the rate; each is a few round trips long, as BBR's cycle is
SHORTEST_WINDOW_S = 0.25
TRICKLE_S = 3.0  # small messages one after the other: those that a lost packet holds up are told apart; on a long link
TRICKLE_ROUND_TRIPS, LONGEST_TRICKLE_S = 30, 15.0  # longer: fewer are under way, and each loss counts for more there
TRICKLE_EVERY_S, TRICKLE_SHARE = 0.005, 0.1  # so often, but of a link's rate no more than this
TRICKLED_BYTES = 200  # of such a message, all headers of the overlay and its tunnel included
TRICKLE_WARM_ROUND_TRIPS = 4  # before TCP has so many under way at once as one round trip takes; not counted
SHORTEST_HELD_RTT_S = 0.02  # a shorter way mends a loss before anybody waits for it
HELD_UP_SHARE, HELD_UP_S = 0.75, 0.05  # of a round trip, and at least, later than the others
PROBE_SHARE = 0.5  # of a round trip later than the others, where BBR probes for the shortest one:
PROBE_MESSAGES = 6  # it sends four packets in each, so the next stall comes as soon after the last one's end
SETTLE_S = 3.0  # until a queue that a stream has left on the way is empty
CALL_S = 3.5  # the kernel calls at once, after 1 s and after 3 s
_ECHO, _SWALLOW = b"e", b"s"
_TCP_INFO_BYTES = 232
_SEGMENTS = "=100xI52xI"  # <linux/tcp.h>: tcpi_total_retrans, tcpi_data_segs_out


class Meter:
    """The part of a :class:`~edgelink.ray_cluster.exchange.Peer` that measures."""

    ip: str

    def open_meter(self) -> int:
        """The port at which small messages are sent back and streams are swallowed."""
        listener = socket.create_server((self.ip, 0), backlog=16)
        threading.Thread(target=self.serve_meter, args=(listener,), daemon=True).start()
        return int(listener.getsockname()[1])

    def serve_meter(self, listener: socket.socket) -> None:
        while True:
            connection, _ = listener.accept()
            threading.Thread(target=self.answer_meter, args=(connection,), daemon=True).start()

    def answer_meter(self, connection: socket.socket) -> None:
        with connection:
            try:
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                kind = connection.recv(1)
                while data := connection.recv(1 << 18):
                    if kind == _ECHO:
                        connection.sendall(data)
            except OSError:
                return  # a stream ends by a reset

    def measure(self, ip: str, port: int, stream_s: float) -> "dict[str, Any]":
        """Round trips to another meter, and how fast a stream reaches it. An ``error`` tells why there is none."""
        try:
            round_trips_ms = self.round_trips(ip, port, ROUND_TRIPS)
            found = self.stream(ip, port, stream_s, min(round_trips_ms) / 1000)
            self.settle(ip, port, 2 * max(round_trips_ms) + 5)
            if min(round_trips_ms) >= SHORTEST_HELD_RTT_S * 1000:
                every_s = max(TRICKLE_EVERY_S, TRICKLED_BYTES * 8e-6 / (TRICKLE_SHARE * max(found["mbit_per_s"], 1e-3)))
                round_trip_s = min(round_trips_ms) / 1000
                trickle_s = max(min(TRICKLE_S, stream_s), min(TRICKLE_ROUND_TRIPS * round_trip_s, LONGEST_TRICKLE_S))
                found |= self.trickle(ip, port, every_s, trickle_s, TRICKLE_WARM_ROUND_TRIPS * round_trip_s)
        except OSError as error:
            return {"error": "timed out" if isinstance(error, TimeoutError) else error.strerror or str(error)}
        return {"round_trips_ms": [round(each, 3) for each in round_trips_ms], **found}

    def round_trips(self, ip: str, port: int, count: int) -> "list[float]":
        found: list[float] = []
        with socket.create_connection((ip, port), CALL_S, source_address=(self.ip, 0)) as connection:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            connection.settimeout(CALL_S)
            connection.sendall(_ECHO)
            end_s = time.monotonic() + ROUND_TRIPS_S
            while len(found) < count and (len(found) < FEWEST_ROUND_TRIPS or time.monotonic() < end_s):
                begun_s = time.monotonic()
                connection.sendall(bytes(MESSAGE_BYTES))
                if len(connection.recv(MESSAGE_BYTES, socket.MSG_WAITALL)) < MESSAGE_BYTES:
                    raise ConnectionResetError("the other side has gone")
                found.append((time.monotonic() - begun_s) * 1000)
        return found

    def stream(self, ip: str, port: int, most_s: float, round_trip_s: float) -> "dict[str, Any]":
        """Send until the rate is known: by what the other kernel confirms, the queues on the way do not count."""
        noise = os.urandom(1 << 16)  # nothing on the way can make it smaller
        with socket.create_connection((ip, port), CALL_S, source_address=(self.ip, 0)) as connection:
            # What is not on its way yet when we stop is dropped, not sent after all.
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            connection.sendall(_SWALLOW)
            connection.setblocking(False)
            poll = select.poll()
            poll.register(connection, select.POLLOUT)
            sent, begun_s = 0, time.monotonic()
            confirmed: list[tuple[float, int]] = [(0.0, 0)]
            shortest_s = max(SHORTEST_STREAM_S, 10 * round_trip_s)
            most_s = max(most_s, shortest_s, min(STREAM_ROUND_TRIPS * round_trip_s, LONGEST_STREAM_S))
            while True:
                if poll.poll(20):
                    sent += connection.send(noise)
                now_s = time.monotonic() - begun_s
                if now_s - confirmed[-1][0] < 0.01:
                    continue
                confirmed.append((now_s, sent - unconfirmed(connection)))
                if now_s >= most_s or confirmed[-1][1] >= MOST_BYTES:
                    break
                if now_s >= shortest_s and is_steady(confirmed, max(SHORTEST_WINDOW_S, 4 * round_trip_s)):
                    break
            info = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _TCP_INFO_BYTES)
            control = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, 16)
        again, segments = (
            struct.unpack_from(_SEGMENTS, info) if len(info) >= struct.calcsize(_SEGMENTS) else (None, None)
        )
        return {
            "mbit_per_s": round(rate_mbit(confirmed, max(SHORTEST_WINDOW_S, 4 * round_trip_s)), 4),
            "bytes": confirmed[-1][1],
            "seconds": round(confirmed[-1][0], 3),
            "segments": segments,
            "retransmitted": again,
            "congestion_control": control.split(b"\0")[0].decode(),
        }

    def trickle(self, ip: str, port: int, every_s: float, seconds: float, warm_s: float = 0.0) -> "dict[str, int]":
        """Send a small message every ``every_s`` and have it sent back: how many arrived, and how many times one was
        held up, and all behind it, by a packet that had to be sent again. Whose TCP did so, the overlay's or that of
        its tunnel, makes no difference to who waits. What is sent in the first ``warm_s`` does not count."""
        sent_s: list[float] = []
        delays_s: list[float] = []
        arrived = 0
        with socket.create_connection((ip, port), CALL_S, source_address=(self.ip, 0)) as connection:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            connection.sendall(_ECHO)
            connection.settimeout(CALL_S)
            begun_s = time.monotonic()
            warm = int(warm_s / every_s)
            count = warm + int(seconds / every_s)
            while len(delays_s) < count:
                due_s = begun_s + len(sent_s) * every_s if len(sent_s) < count else begun_s + count * every_s + CALL_S
                left_s = due_s - time.monotonic()
                if left_s <= 0:
                    if len(sent_s) == count:
                        break  # what is still away is told by the next one who asks
                    sent_s.append(time.monotonic())
                    connection.sendall(bytes(MESSAGE_BYTES))
                elif select.select([connection], [], [], left_s)[0]:
                    data = connection.recv(1 << 16)
                    if not data:
                        raise ConnectionResetError("the other side has gone")
                    arrived += len(data)
                    now_s = time.monotonic()
                    delays_s += [now_s - at for at in sent_s[len(delays_s) : arrived // MESSAGE_BYTES]]
        return {"trickled": len(delays_s[warm:]), "held_up": times_held_up(sent_s[warm:], delays_s[warm:])}

    def settle(self, ip: str, port: int, wanted_ms: float) -> None:
        end_s = time.monotonic() + SETTLE_S
        with contextlib.suppress(OSError):  # what was measured stays true
            while time.monotonic() < end_s and min(self.round_trips(ip, port, 1)) > wanted_ms:
                pass


def unconfirmed(connection: socket.socket) -> int:
    """Bytes that were sent, and that the other machine's kernel has not confirmed."""
    return int(struct.unpack("i", fcntl.ioctl(connection.fileno(), termios.TIOCOUTQ, struct.pack("i", 0)))[0])


def times_held_up(sent_s: "list[float]", delays_s: "list[float]") -> int:
    """How often the messages began to be much later than those before them.

    Not where BBR probes for the shortest round trip, every ten seconds for at least 200 ms (draft-ietf-ccwg-bbr,
    ProbeRTT): it has four packets under way then, so what follows them waits for the rest of the round trip, in each
    round trip anew. No packet was lost, and more of them would not wait more often.
    """
    if not delays_s:
        return 0
    usual_s = sorted(delays_s)[len(delays_s) // 2]
    every_s = (sent_s[-1] - sent_s[0]) / max(1, len(sent_s) - 1)
    late_s = [delay_s - usual_s for delay_s in delays_s]
    stalls = starts(late_s, max(PROBE_SHARE * usual_s, HELD_UP_S))
    probes = set()
    for one, other in itertools.pairwise(stalls):
        apart_s = sent_s[other] - sent_s[one]
        if apart_s <= usual_s + every_s and 0 < apart_s - late_s[one] <= PROBE_MESSAGES * every_s:
            probes |= {one, other}
    held = starts(late_s, max(HELD_UP_SHARE * usual_s, HELD_UP_S))
    return sum(max(stall for stall in stalls if stall <= at) not in probes for at in held)


def starts(values: "list[float]", above: float) -> "list[int]":
    """Where the values begin to be greater than that."""
    return [at for at, value in enumerate(values) if value > above and (at == 0 or values[at - 1] <= above)]


def window_rates(confirmed: "list[tuple[float, int]]", window_s: float) -> "list[float]":
    """Bytes a second in each of the last windows, the latest first; fewer where the stream is younger."""
    rates: list[float] = []
    end = len(confirmed) - 1
    while len(rates) < WINDOWS and confirmed[end][0] >= window_s:
        start = max(at for at in range(end) if confirmed[at][0] <= confirmed[end][0] - window_s)
        seconds = confirmed[end][0] - confirmed[start][0]
        rates.append((confirmed[end][1] - confirmed[start][1]) / seconds)
        end = start
    return rates


def is_steady(confirmed: "list[tuple[float, int]]", window_s: float) -> bool:
    rates = window_rates(confirmed, window_s)
    return len(rates) == WINDOWS and max(rates) - min(rates) <= AGREE * max(rates)


def rate_mbit(confirmed: "list[tuple[float, int]]", window_s: float) -> float:
    """Of the last windows where these agree, else of all but the first third: on a long link that loses packets, one
    loss stops the stream for three round trips, and of a shorter time the rate would be chance."""
    rates = window_rates(confirmed, window_s)
    if is_steady(confirmed, window_s):
        return sum(rates) / len(rates) * 8e-6
    last_s, last_bytes = confirmed[-1]
    start = max(at for at in range(len(confirmed)) if confirmed[at][0] <= last_s * STARTING_SHARE)
    if confirmed[start][1] == last_bytes:  # a thin link stands still for seconds when it loses a packet
        start = 0
    return (last_bytes - confirmed[start][1]) / max(last_s - confirmed[start][0], 1e-6) * 8e-6


def measure_links(
    ray: Any, peers: "dict[str, Any]", ips: "dict[str, str]", pairs: "list[list[str]]"
) -> "list[dict[str, Any]]":
    """Both directions of each pair, one after the other: two streams on one way would share it."""
    names = sorted({name for pair in pairs for name in pair})
    ports = {name: ray.get(peers[name].open_meter.remote()) for name in names}
    stream_s = min(STREAM_S, max(1.0, ALL_STREAMS_S / (2 * len(pairs) or 1)))
    found = []
    for a, b in [way for pair in pairs for way in (pair, pair[::-1])]:
        answer = peers[a].measure.remote(ips[b], ports[b], stream_s)
        patience_s = max(stream_s, LONGEST_STREAM_S) + ROUND_TRIPS_S + SETTLE_S + 2 * LONGEST_TRICKLE_S + 12 * CALL_S
        done, _ = ray.wait([answer], num_returns=1, timeout=patience_s)
        told = ray.get(answer) if done else {"error": f"no answer within {patience_s:g} s"}
        found.append({"from": a, "to": b, **told})
    return found
