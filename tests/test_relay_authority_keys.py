"""The keys of a network: made once, complete, and never made again over what is left of them."""

from __future__ import annotations

import hashlib
import os
import ssl
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.verification import PolicyBuilder, Store

from edgelink.errors import RegistryError
from edgelink.relay.authority_keys import AuthorityKeys
from edgelink.testing import FakeClock

FILES = {"registry.key", "ca.pem", "ca.key", "tls.pem", "tls.key"}


def test_keys_are_made_once(tmp_path: Path) -> None:
    """A restart finds the same network, and everything is private to the relay's root."""
    first = AuthorityKeys.load_or_create(tmp_path / "authority", FakeClock())
    again = AuthorityKeys.load_or_create(tmp_path / "authority", FakeClock())
    assert (again.network_id, again.verify_key_b64, again.ca_sha256) == (
        first.network_id,
        first.verify_key_b64,
        first.ca_sha256,
    )
    assert {path.name for path in first.directory.iterdir()} == FILES
    assert {path.stat().st_mode & 0o777 for path in first.directory.iterdir()} == {0o600}
    assert first.directory.stat().st_mode & 0o777 == 0o700
    assert [path.name for path in tmp_path.iterdir()] == ["authority"]


def test_two_networks_differ(tmp_path: Path) -> None:
    """Each relay makes a network of its own."""
    ids = {AuthorityKeys.load_or_create(tmp_path / name, FakeClock()).network_id for name in "abc"}
    assert len(ids) == 3


def test_the_chain_is_a_good_one(tmp_path: Path) -> None:
    """A strict verifier accepts leaf and CA for the network's name, for more than ten years."""
    clock = FakeClock()
    keys = AuthorityKeys.load_or_create(tmp_path / "authority", clock)
    leaf, ca = x509.load_pem_x509_certificates(keys.tls_certificate_path.read_bytes())
    assert keys.ca_sha256 == hashlib.sha256(ssl.PEM_cert_to_DER_cert(keys.ca_pem)).digest()
    verifier = (
        PolicyBuilder().store(Store([ca])).time(clock.now()).build_server_verifier(x509.DNSName(keys.server_name))
    )
    verifier.verify(leaf, [ca])
    assert leaf.not_valid_after_utc.year - clock.now().year > 10
    assert isinstance(leaf.public_key(), ec.EllipticCurvePublicKey)


@pytest.mark.parametrize("name", sorted(FILES))
def test_a_missing_file_is_an_error_for_a_person(tmp_path: Path, name: str) -> None:
    """Keys that are missing in part are not made anew: every token and node out there trusts the old ones."""
    keys = AuthorityKeys.load_or_create(tmp_path / "authority", FakeClock())
    (keys.directory / name).unlink()
    with pytest.raises(RegistryError, match=name) as caught:
        AuthorityKeys.load_or_create(keys.directory, FakeClock())
    assert "backup" in caught.value.hint
    assert {path.name for path in keys.directory.iterdir()} == FILES - {name}


def test_leftovers_of_a_killed_first_start_are_swept_up(tmp_path: Path) -> None:
    """A half-made directory of a predecessor is removed; an empty one is no obstacle."""
    leftover = tmp_path / ".authority.new-0123"
    leftover.mkdir()
    (leftover / "ca.key").write_text("half")
    (tmp_path / "authority").mkdir()
    AuthorityKeys.load_or_create(tmp_path / "authority", FakeClock())
    assert [path.name for path in tmp_path.iterdir()] == ["authority"]


def test_a_killed_first_start_leaves_nothing_half_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whichever step fails, the next start makes a whole network."""

    def no_rename(_source: Path, _target: Path) -> None:
        raise OSError("no")

    monkeypatch.setattr(os, "rename", no_rename)
    with pytest.raises(OSError, match="no"):
        AuthorityKeys.load_or_create(tmp_path / "authority", FakeClock())
    assert list(tmp_path.iterdir()) == []
    monkeypatch.undo()
    assert AuthorityKeys.load_or_create(tmp_path / "authority", FakeClock()).network_id


def test_derived_passwords(tmp_path: Path) -> None:
    """The same request has the same password; another request, or another registry, another one."""
    keys = AuthorityKeys.load_or_create(tmp_path / "a", FakeClock())
    other = AuthorityKeys.load_or_create(tmp_path / "b", FakeClock())
    assert keys.derive_password(b"1") == keys.derive_password(b"1")
    assert len({keys.derive_password(b"1"), keys.derive_password(b"2"), other.derive_password(b"1")}) == 3
    assert len(keys.derive_password(b"1")) == 32
