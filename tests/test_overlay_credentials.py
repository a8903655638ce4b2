"""A credential of each node's own in place of the network's secret: EasyTier 2.6's recipe, step by step.

2.6 itself does not run here: what counts is what the recipe says of files, arguments, environment and order.
"""

from __future__ import annotations

import base64
import json
import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import easytier_stand_in
import pytest
from nacl.public import PrivateKey
from overlay_world import World, paths, world  # noqa: F401
from test_easytier_versions import MakeNode, make_node  # noqa: F401
from test_overlay_config_file import SPEC

from edgelink.errors import EasyTierNotFoundError, OverlayError
from edgelink.log import redact
from edgelink.overlay import config_file, credentials
from edgelink.overlay.acquisition import EasyTierBinary, find_easytier
from edgelink.overlay.capabilities import Capabilities
from edgelink.testing import eventually, reserved_port

NEW = Capabilities.for_version("2.6.4")
CREDENTIAL = base64.b64encode(b"c" * 32).decode()
EDGE = replace(SPEC, network_secret="", credential=CREDENTIAL)


def admin(directory: Path) -> config_file.OverlaySpec:
    return replace(SPEC, credential_file=directory / "cred.json")


def test_without_credentials_nothing_is_another() -> None:
    """The same file and the same hash as ever: else an upgrade would restart every EasyTier."""
    assert SPEC.config_hash == "4c8e08d7a9124ceaf0496747631b55fa75ee356b1c3d1661188ca41feb13cdd7"
    assert replace(SPEC, p2p=False).config_hash == "1a06f36f3bca54becfa4a2fe721bb112ebf9913bf11f55e081c048e496a95811"
    for version in ("2.0.3", "2.6.4"):
        text = config_file.render(SPEC, Capabilities.for_version(version))
        assert "credential" not in text
        assert "secure_mode" not in text
    assert "ET_CREDENTIAL" not in config_file.environment(NEW, SPEC)


def test_a_node_has_it_in_its_environment_and_nothing_of_it_in_its_file() -> None:
    """No secret and no [secure_mode] beside it; a credential in the file is refused by EasyTier."""
    text = config_file.render(EDGE, NEW)
    file = tomllib.loads(text)
    assert file["network_identity"] == {"network_name": "fleet-a"}
    assert "secure_mode" not in file
    assert "credential_file" not in file
    assert CREDENTIAL not in text
    environment = config_file.environment(NEW, EDGE)
    assert environment["ET_CREDENTIAL"] == CREDENTIAL
    assert environment.keys() == {"PATH", "LANG", "RUST_LOG", "ET_CREDENTIAL"}
    words = config_file.argv(Path("core"), Path("f.toml"), EDGE, NEW)
    assert words == config_file.argv(Path("core"), Path("f.toml"), SPEC, NEW)
    assert CREDENTIAL not in repr(EDGE)
    assert len({SPEC.config_hash, EDGE.config_hash, replace(EDGE, credential=None).config_hash}) == 3


def test_who_makes_them_has_the_secret_both_keys_and_a_file_for_them(tmp_path: Path) -> None:
    """A private key alone fails, and `enabled` alone, too; the file's key stands above every table."""
    spec = admin(tmp_path)
    file = tomllib.loads(config_file.render(spec, NEW))
    assert file["network_identity"] == {"network_name": "fleet-a", "network_secret": SPEC.network_secret}
    assert file["credential_file"] == str(tmp_path / "cred.json")
    mode = file["secure_mode"]
    assert mode.keys() == {"enabled", "local_private_key", "local_public_key"}
    assert mode["enabled"] is True
    private = base64.b64decode(mode["local_private_key"], validate=True)
    assert len(private) == 32
    assert bytes(PrivateKey(private).public_key) == base64.b64decode(mode["local_public_key"], validate=True)
    assert "ET_CREDENTIAL" not in config_file.environment(NEW, spec)
    assert mode["local_private_key"] in spec.secrets
    assert spec.secure_keys == admin(tmp_path).secure_keys
    assert replace(spec, network_secret="another").secure_keys != spec.secure_keys
    assert replace(spec, instance_id="another").secure_keys != spec.secure_keys


def test_where_they_are_kept_is_no_reason_to_restart_it() -> None:
    """The hash of an EdgeLink that had no directory for them."""
    file = Path("/var/lib/edgelink/easytier-credentials/easytier-credentials-1.json")
    spec = replace(SPEC, credential_file=file)
    assert spec.config_hash == "349ebbd2553a6a2d586872800326fae230084223ec765f2609187f9ba0c48a6b"
    assert replace(spec, credential_file=file.with_name("easytier-credentials-2.json")).config_hash != spec.config_hash


async def test_they_lie_where_systemd_lets_easytier_write(world: World) -> None:
    """In a directory of their own, which is there before; those of an older EdgeLink are brought over once."""
    assert world.spec is not None
    state = world.paths.state
    file, former = state / "easytier-credentials" / "credentials.json", state / "credentials.json"
    world.version, world.spec = "2.6.4", replace(world.spec, credential_file=file)
    state.mkdir()
    former.write_text("the keys")
    await world.up()
    assert world.process.started[0].writes == (file.parent,)
    assert file.parent.stat().st_mode & 0o777 == 0o700
    assert (file.read_text(), former.exists()) == ("the keys", False)
    file.write_text("more keys")
    world.process.end(-9)
    await world.reconciler.reconcile()
    assert world.process.started[1].writes == (file.parent,)
    assert file.read_text() == "more keys"


async def test_what_makes_no_credentials_writes_beside_its_log_only(world: World) -> None:
    await world.up()
    (started,) = world.process.started
    assert (started.cwd, started.writes) == (world.paths.logs, ())


async def test_a_node_runs_with_its_credential_and_shows_it_nowhere(make_node: MakeNode) -> None:
    """In the environment of easytier-core only: not in its arguments, not in any file, not in its log."""
    node = await make_node("2.6.4", spec=EDGE)
    await node.up()
    assert node.conditions.is_true("OverlayUp")
    effective = node.effective()
    assert (effective["credential"], effective["secret"]) == (CREDENTIAL, "")
    assert effective["ignored"] == ["rpc_portal"]
    assert node.process.identity is not None
    process = Path(f"/proc/{node.process.identity.pid}")
    assert f"ET_CREDENTIAL={CREDENTIAL}".encode() in (process / "environ").read_bytes().split(b"\0")
    assert CREDENTIAL.encode() not in (process / "cmdline").read_bytes()
    assert (process / "environ").stat().st_mode & 0o077 == 0
    log = node.paths.logs / "easytier.log"
    with log.open("a") as file:
        file.write(f"credential = {CREDENTIAL}\n")  # as a banner would have it
    node.reconciler._core.hide_secret(node.spec)
    kept = [path for path in node.paths.state.rglob("*") if path.is_file() and path.name != "effective.json"]
    assert log in kept
    assert not [path for path in kept if CREDENTIAL in path.read_text()]
    assert CREDENTIAL not in redact(f"it is {CREDENTIAL}")
    assert all(path.stat().st_mode & 0o077 == 0 for path in kept)


async def test_a_version_that_knows_none_is_refused_and_named(make_node: MakeNode) -> None:
    """Before anything is started."""
    node = await make_node("2.5.0", spec=EDGE)
    with pytest.raises(EasyTierNotFoundError, match=r"2\.5\.0 knows no credentials") as caught:
        await node.reconciler.reconcile()
    assert caught.value.condition_reason == "EasyTierTooOld"
    assert not (node.paths.logs / "effective.json").exists()


async def test_what_runs_goes_on_until_the_credential_is_there(make_node: MakeNode) -> None:
    """A node that hears that there are credentials, and not yet of its own."""
    node = await make_node("2.6.4")
    await node.up()
    before = node.process.identity
    node.spec = replace(EDGE, rpc_port=node.spec.rpc_port, credential="")
    with pytest.raises(OverlayError, match="has not sent") as caught:
        await node.reconciler.reconcile()
    assert caught.value.condition_reason == "CredentialPending"
    assert caught.value.retryable
    assert node.process.identity == before
    assert node.process.is_running
    node.spec = replace(node.spec, credential=CREDENTIAL)
    await node.reconciler.reconcile()
    await eventually(lambda: node.effective()["credential"] == CREDENTIAL)


StartAdmin = Callable[..., tuple[EasyTierBinary, int]]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[StartAdmin]:
    """An EasyTier of its own, as the real code would have it started."""
    children: list[subprocess.Popen[bytes]] = []
    ports = ExitStack()

    def run(spec: config_file.OverlaySpec, version: str = "2.6.4", fault: str = "") -> tuple[EasyTierBinary, int]:
        binary = find_easytier(easytier_stand_in.install(tmp_path, version, fault), tmp_path)
        spec = replace(spec, rpc_port=ports.enter_context(reserved_port()))
        toml = tmp_path / "easytier.toml"
        if spec.credential_file is not None:
            spec.credential_file.parent.mkdir(exist_ok=True)
        capabilities = Capabilities.for_version(version)
        toml.write_text(config_file.render(spec, capabilities))
        children.append(
            subprocess.Popen(
                config_file.argv(binary.core, toml, spec, capabilities),
                env=config_file.environment(capabilities, spec),
                cwd=tmp_path,
                umask=0o077,
                stdout=subprocess.DEVNULL,
            )
        )
        return binary, spec.rpc_port

    with ports:
        yield run
        for child in children:
            child.kill()
            child.wait(20)


async def serves(directory: Path) -> None:
    await eventually((directory / "effective.json").exists)


async def test_credentials_are_made_once_listed_and_revoked(start: StartAdmin, tmp_path: Path) -> None:
    """The same id has the same secret; the file with the keys is nobody else's to read, although EasyTier would."""
    binary, port = start(admin(tmp_path))
    await serves(tmp_path)
    assert await credentials.expiries(binary, port) == {}
    first = await credentials.generate(binary, port, "robot-07")
    assert await credentials.generate(binary, port, "robot-07") == first
    assert await credentials.generate(binary, port, "robot-08") != first
    assert (tmp_path / "cred.json").stat().st_mode & 0o777 == 0o600
    ends_s = await credentials.expiries(binary, port)
    assert ends_s.keys() == {"robot-07", "robot-08"}
    await credentials.revoke(binary, port, "robot-07")
    assert (await credentials.expiries(binary, port)).keys() == {"robot-08"}
    await credentials.revoke(binary, port, "robot-07")


async def test_the_command_is_the_one_of_the_recipe(tmp_path: Path) -> None:
    """Word by word; no secret is among them."""
    cli = tmp_path / "easytier-cli"
    cli.write_text(
        f"#!{sys.executable}\nimport sys\nopen({str(tmp_path / 'words')!r}, 'a').write(f'{{sys.argv[1:]}}\\n')\n"
    )
    cli.chmod(0o755)
    binary = EasyTierBinary(tmp_path / "core", cli, "2.6.4")
    for asked in (
        credentials.generate(binary, 1, "robot-07"),
        credentials.expiries(binary, 1),
    ):
        with pytest.raises(OverlayError, match="does not know"):
            await asked
    await credentials.revoke(binary, 1, "robot-07")
    head = ["-p", "127.0.0.1:1", "-o", "json", "credential"]
    assert [json.loads(line.replace("'", '"')) for line in (tmp_path / "words").read_text().splitlines()] == [
        [*head, "generate", "--ttl", "315360000", "--credential-id", "robot-07"],
        [*head, "list"],
        [*head, "revoke", "robot-07"],
    ]


async def test_an_answer_that_is_not_known_is_refused_and_not_shown(start: StartAdmin, tmp_path: Path) -> None:
    """It may hold a secret. A node that has no secret may make none."""
    binary, port = start(admin(tmp_path), fault="generates nonsense")
    await serves(tmp_path)
    with pytest.raises(OverlayError, match="does not know") as caught:
        await credentials.generate(binary, port, "robot-07")
    assert "robot-07" not in str(caught.value)
    (tmp_path / "effective.json").unlink()
    binary, port = start(EDGE)
    await serves(tmp_path)
    with pytest.raises(OverlayError, match="only admin nodes"):
        await credentials.generate(binary, port, "robot-07")


def test_there_are_credentials_from_2_6_0_on() -> None:
    known = {version: Capabilities.for_version(version).credentials for version in ("2.0.3", "2.5.0", "2.6.0", "3.1.0")}
    assert known == {"2.0.3": False, "2.5.0": False, "2.6.0": True, "3.1.0": True}


def test_the_stand_in_is_as_strict_as_the_recipe(tmp_path: Path) -> None:
    """`enabled` alone, a private key alone, and a credential beside a secret: what was seen to fail fails here."""
    core = easytier_stand_in.install(tmp_path, "2.6.4")
    whole = config_file.render(replace(admin(tmp_path), rpc_port=1), NEW)
    without_public = re.sub(r"local_public_key = .*\n", "", whole)
    without_keys = re.sub(r"local_private_key = .*\n", "", without_public)
    beside = config_file.render(replace(SPEC, rpc_port=1), NEW)
    for text, environment in ((without_public, {}), (without_keys, {}), (beside, {"ET_CREDENTIAL": CREDENTIAL})):
        file = tmp_path / "f.toml"
        file.write_text(text)
        result = subprocess.run(
            [str(core), "-c", str(file)],
            env={**os.environ, **environment},
            cwd=tmp_path,
            capture_output=True,
            check=False,
        )
        assert result.returncode == 1, text
