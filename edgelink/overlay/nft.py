"""nftables tables of our own: put in place in one transaction, recognised again, taken away; no other is touched."""

from __future__ import annotations

import asyncio
import hashlib
import re
from collections.abc import Iterable
from dataclasses import dataclass
from ipaddress import IPv4Address

from edgelink.errors import EdgelinkError, MissingDependencyError
from edgelink.process.answer import end
from edgelink.timeouts import timeout

_TIMEOUT_S = 10.0  # it takes milliseconds
MARK = "@MARK@"  # in the comment of every rule: tells whether all of them are in the kernel, and no others
OPENING = "tcp flags & (fin|syn|rst|ack) == syn"  # the first packet of a connection: replies get through
_SET = r"set {} {{.*?\n\t}}"
_ELEMENTS = re.compile(r"elements = {(.*?)}", re.DOTALL)
_RULE = re.compile(r"[^{\s] # handle \d+$", re.MULTILINE)  # those of tables, chains and sets follow a brace


class FirewallError(EdgelinkError):
    """nftables refused our table, or did not answer."""

    reason = "FirewallFailed"
    retryable = True


@dataclass(frozen=True)
class Applied:
    """What became of a table.

    Attributes:
        listing: the table of that name as it was found. Empty: there was none.
        is_made: it was not the wanted one, and was made anew.
    """

    listing: str
    is_made: bool


def address_set(addresses: Iterable[IPv4Address]) -> str:
    """Return addresses as a set that is part of a rule, so that nobody takes an element out unnoticed; pure."""
    return f"{{ {', '.join(map(str, sorted(addresses)))} }}"


@dataclass(frozen=True)
class Table:
    """One ``inet`` table.

    Attributes:
        chains: its body, with :data:`MARK` as the comment of each rule.
        kept: the sets whose elements stay when this table takes another one's place, for the rest of their time.
    """

    name: str
    chains: str
    kept: tuple[str, ...] = ()

    @property
    def mark(self) -> str:
        return f"edgelink {hashlib.sha256(self.chains.encode()).hexdigest()[:16]}"

    @property
    def script(self) -> str:
        """For ``nft -f -``; running it twice is harmless."""
        # Naming the table first makes the deletion succeed where there is none yet.
        body = self.chains.replace(MARK, self.mark)
        return f"{self._removal}table inet {self.name} {{\n{body}}}\n"

    def script_after(self, listing: str) -> str:
        """Return the script that puts this table in the place of the one that nft listed."""
        found = {name: elements_in(listing, name) for name in self.kept if f"set {name} {{" in self.chains}
        return self.script + "".join(self._addition(name, elements) for name, elements in found.items())

    @property
    def _removal(self) -> str:
        return f"table inet {self.name}\ndelete table inet {self.name}\n"

    async def apply(self) -> Applied:
        """Put the table in place, unless exactly this one is there.

        Raises:
            MissingDependencyError: no nft on this machine.
            FirewallError: nft refused, or did not answer.
        """
        found = await self._listing()
        if self._is_whole(found):
            return Applied(found, is_made=False)
        script = self.script_after(found)
        status, output = await _nft("-f", "-", script=script)
        if status != 0 and script != self.script:  # another version's elements may not fit
            status, output = await _nft("-f", "-", script=self.script)
        if status != 0:
            raise FirewallError(
                f"nftables table inet {self.name} could not be made: {output.strip()}",
                hint="EdgeLink needs root (NET_ADMIN) and nf_tables in the kernel; "
                "`firewall: off` leaves Ray's ports and EasyTier's RPC open",
            )
        return Applied(found, is_made=True)

    async def _listing(self) -> str:
        """The table as nft lists it. Empty: there is none."""
        status, output = await _nft("-a", "list", "table", "inet", self.name)
        return output if status == 0 else ""

    def _is_whole(self, listing: str) -> bool:
        wanted = self.chains.count(MARK)
        return bool(listing) and listing.count(self.mark) == wanted == len(_RULE.findall(listing))

    async def add_elements(self, to_set: str, elements: Iterable[str]) -> None:
        """Add to one of the sets of the table, which has to be in place; what is there already stays.

        Raises as :meth:`apply`.
        """
        await self._change(to_set, self._addition(to_set, elements))

    async def replace_elements(self, of_set: str, elements: Iterable[str]) -> None:
        """Have one of the sets of the table, which has to be in place, hold exactly these. Raises as :meth:`apply`."""
        added = self._addition(of_set, elements)
        await self._change(of_set, f"flush set inet {self.name} {of_set}\n{added}")

    def _addition(self, to_set: str, elements: Iterable[str]) -> str:
        listed = ", ".join(elements)
        return f"add element inet {self.name} {to_set} {{ {listed} }}\n" if listed else ""

    async def _change(self, changed_set: str, script: str) -> None:
        status, output = await _nft("-f", "-", script=script)
        if status != 0:
            raise FirewallError(
                f"nftables table inet {self.name}: {changed_set} could not be changed: {output.strip()}",
                hint="did somebody else change the table? The daemon puts it back within half a minute",
            )

    async def remove(self) -> None:
        """Take the table away, whatever it holds; nothing happens when there is none. Raises as :meth:`apply`."""
        await _nft("-f", "-", script=self._removal)


def elements_in(listing: str, of_set: str) -> list[str]:
    """Return the elements of a set that nft listed, as it takes them; pure."""
    block = re.search(_SET.format(of_set), listing, re.DOTALL)
    found = _ELEMENTS.search(block[0]) if block else None
    return [each.strip() for each in found[1].split(",")] if found else []


async def _nft(*arguments: str, script: str = "") -> tuple[int, str]:
    try:
        process = await asyncio.create_subprocess_exec(
            "nft",
            *arguments,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
    except FileNotFoundError as error:
        raise MissingDependencyError(
            "nft: not found; the firewall around Ray's ports and EasyTier's RPC needs it",
            hint="apt-get install nftables, or accept open ports with `firewall: off`",
        ) from error
    except OSError as error:
        raise FirewallError(
            f"nft: cannot be run: {error.strerror or error}", hint="is the machine short of memory or processes?"
        ) from error
    try:
        async with timeout(_TIMEOUT_S):
            output, _ = await process.communicate(script.encode())
    except TimeoutError as error:
        raise FirewallError(
            f"nft {' '.join(arguments)}: no answer within {_TIMEOUT_S:g} s, ended",
            hint="is another program holding nf_tables? Try `nft list tables` as root",
        ) from error
    finally:  # also when we are cancelled: what comes next may be the removal of the table that it is to make
        await end(process)
    return process.returncode or 0, output.decode(errors="replace")
