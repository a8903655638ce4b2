"""A broker in wrong hands, with the relay's TLS key and no rules, and what it can say of the network's secret."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from edgelink.protocol.keys import Kind, NodeKey, seal
from edgelink.protocol.payloads import Envelope, NetworkSecrets, NetworkState, Rotation
from edgelink.protocol.topics import Topics
from edgelink.relay.authority_keys import AuthorityKeys

Lie = tuple[str, bytes]

_SECRET = "the attacker's own secret"


def write_conf(directory: Path, seen_as: Path, keys: AuthorityKeys, address: str, port: int) -> Path:
    """A ``mosquitto.conf`` in ``directory``, which is ``seen_as`` where the broker runs; its path there."""
    shutil.copy(keys.tls_certificate_path, directory / "tls.pem")
    shutil.copy(keys.tls_key_path, directory / "tls.key")
    (directory / "mosquitto.conf").write_text(
        f"user root\nlistener {port} {address}\nallow_anonymous true\npersistence false\nlog_type none\n"
        f"certfile {seen_as / 'tls.pem'}\nkeyfile {seen_as / 'tls.key'}\n"
    )
    return seen_as / "mosquitto.conf"


@dataclass(frozen=True)
class Target:
    """A node that is lied to. ``others``: keys of other nodes, which the attacker has, too."""

    topics: Topics
    node_id: str
    verify_key: str
    others: tuple[NodeKey, ...]
    stranger: AuthorityKeys  # another network's registry


def lies(target: Target, state: Envelope, recorded: list[Lie]) -> Iterator[Lie]:
    """All that such a broker can say to one node of the network's secret, while ``state`` is the newest true word.

    Args:
        recorded: true words from before, on whatever topic they came; each is played on the topics of this node.
    """
    now = NetworkState.model_validate_json(state.body)
    yield from ((_played(target, topic), payload) for topic, payload in recorded)
    signers: tuple[NodeKey | AuthorityKeys, ...] = (*target.others, NodeKey.generate(), target.stranger)
    for signer in signers:
        # Whoever signed it says that the registry did, or says who it was.
        for name in ("registry", getattr(signer, "node_id", "registry")):
            for forged in _states(target, now):
                envelope = signer.sign(Kind.NETWORK, forged).model_copy(update={"signer": name})
                yield target.topics.network, _encoded(envelope)
            for secrets in _secrets(target, now):
                envelope = signer.sign(Kind.NETWORK_SECRETS, secrets).model_copy(update={"signer": name})
                yield target.topics.secrets(target.node_id), seal(target.verify_key, _encoded(envelope)).encode()
    for forged in _states(target, now):  # the registry's own signature, under other words
        altered = state.model_copy(update={"body": forged.model_dump_json()})
        yield target.topics.network, _encoded(altered)
    secrets_topic = target.topics.secrets(target.node_id)
    yield secrets_topic, seal(target.verify_key, _encoded(state)).encode()  # its signature, on another kind
    yield secrets_topic, seal(target.verify_key, b"{}").encode()
    for topic in (target.topics.network, secrets_topic):
        yield topic, os.urandom(64)


def _played(target: Target, topic: str) -> str:
    return target.topics.network if topic == target.topics.network else target.topics.secrets(target.node_id)


def _encoded(envelope: Envelope) -> bytes:
    return envelope.model_dump_json().encode()


def _states(target: Target, now: NetworkState) -> list[NetworkState]:
    """Put out; a change that has come, is to come, another one; a lower number or generation; another network's."""
    newer = now.model_copy(update={"number": now.number + 1})
    next_epoch = now.secret_epoch + 1
    changes = (
        {"revoked": (*now.revoked, target.node_id)},
        {"secret_epoch": next_epoch, "rotation": None},
        {"rotation": Rotation(to_epoch=next_epoch, switch_in_s=0.0)},
        {"secret_epoch": next_epoch + 1, "rotation": None},
        {"generation": now.generation + 1, "number": 0, "secret_epoch": 1},
        {"number": 0},
        {"network_id": target.stranger.network_id},
    )
    return [newer.model_copy(update=change) for change in changes]


def _secrets(target: Target, now: NetworkState) -> list[NetworkSecrets]:
    """A secret of the attacker's own: to be used now, prepared for later, in place of an older one."""
    made = NetworkSecrets(
        network_id=now.network_id,
        node_id=target.node_id,
        generation=now.generation,
        number=now.number + 1,
        secret_epoch=now.secret_epoch + 1,
        network_secret=_SECRET,
    )
    changes = (
        {},
        {"secret_epoch": now.secret_epoch, "next_epoch": now.secret_epoch + 1, "next_secret": _SECRET},
        {"secret_epoch": now.secret_epoch},
        {"generation": now.generation + 1, "secret_epoch": now.secret_epoch + 100},
    )
    return [made.model_copy(update=change) for change in changes]
