"""The error tree: every failure EdgeLink can name.

Each error says *what* failed, *where*, *why* and *what to do* (``hint``). It carries a stable CamelCase ``reason``
which becomes the reason of a condition, whether trying again can help (``retryable``), and the exit code a
command line ends with. Errors are raised where they happen; only the reconcile loop and the CLI's ``main`` decide
what to do about them.
"""

from __future__ import annotations

from enum import IntEnum
from typing import ClassVar


class ExitCode(IntEnum):
    """Exit statuses of every command; 69, 75 and 78 are EX_UNAVAILABLE, EX_TEMPFAIL and EX_CONFIG of sysexits.h."""

    OK = 0
    FAILED = 1
    USAGE = 2
    NODE_LOST = 69
    TRY_AGAIN = 75
    CONFIG = 78


class EdgelinkError(Exception):
    """Base of all errors that are shown to people as one message and one hint.

    Args:
        message: what failed, where and why, without a trailing full stop.
        hint: what the reader can do about it; shown after the message.
        reason: overrides the class's ``reason`` where one class covers several observable reasons.
    """

    reason: ClassVar[str] = "Failed"
    retryable: ClassVar[bool] = False
    exit_code: ExitCode = ExitCode.FAILED

    def __init__(self, message: str, *, hint: str = "", reason: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.condition_reason = reason or type(self).reason

    def __str__(self) -> str:
        end = "" if self.message.endswith(("?", ".")) else "."
        return f"{self.message}{end} {self.hint}" if self.hint else self.message


class ConfigError(EdgelinkError):
    """A configuration file, environment variable or flag holds something unusable."""

    reason = "ConfigInvalid"
    exit_code = ExitCode.CONFIG


class UsageError(EdgelinkError):
    """The command was called in a place or a way it cannot work."""

    reason = "Usage"
    exit_code = ExitCode.USAGE


class DeadlineError(EdgelinkError):
    """A wait reached its deadline; what was waited for may still come."""

    reason = "TimedOut"
    retryable = True
    exit_code = ExitCode.TRY_AGAIN


class MissingDependencyError(EdgelinkError):
    """A program or kernel feature that EdgeLink needs is not on this machine."""

    reason = "DependencyMissing"
    exit_code = ExitCode.CONFIG


class ProcessError(EdgelinkError):
    """A supervised process could not be started, ended unasked, or would not stop."""

    reason = "ProcessFailed"


class SignalledError(EdgelinkError):
    """A daemon under systemd got a SIGTERM that systemd did not send: its exit status has it started again."""

    reason = "Signalled"
    retryable = True
    exit_code = ExitCode.TRY_AGAIN


class ProcessStartError(ProcessError):
    """The process could not be started at all, or ended before it was of use."""

    reason = "ProcessStartFailed"
    retryable = True


class PrivateFilesError(ProcessStartError):
    """The process cannot be given files of its own; without them it could be started."""

    reason = "PrivateFilesRefused"


class ProcessExitedError(ProcessError):
    """The process ended without having been asked to."""

    reason = "ProcessExited"
    retryable = True


class ProcessStopError(ProcessError):
    """The process is still there after the last rung of the stop ladder."""

    reason = "ProcessStopTimedOut"


class NotRecordedError(EdgelinkError):
    """A file could not be written: the disk is full, say. What has to be on disk first was not done either."""

    reason = "NotRecorded"
    retryable = True


class OverlayError(EdgelinkError):
    """The overlay network is not usable."""

    reason = "OverlayFailed"


class EasyTierNotFoundError(OverlayError):
    """No usable easytier-core on this machine, and none could be fetched."""

    reason = "EasyTierNotFound"
    exit_code = ExitCode.CONFIG


class InterfaceNotReadyError(OverlayError):
    """The TUN device is missing, down, or without our address."""

    reason = "InterfaceNotReady"
    retryable = True


class OverlayAddressError(OverlayError):
    """The overlay address is not ours alone: it collides with a local network or another peer."""

    reason = "OverlayAddressConflict"
    exit_code = ExitCode.CONFIG


class RegistryError(EdgelinkError):
    """The registry refused, or could not do, what was asked."""

    reason = "RegistryFailed"


class RegistryUnavailableError(RegistryError):
    """The relay's broker or registry does not answer."""

    reason = "RegistryUnavailable"
    retryable = True
    exit_code = ExitCode.TRY_AGAIN


class NoRelayError(RegistryUnavailableError):
    """What answers at the relay's address does not speak TLS as the relay's broker does."""


class RenewedJustNowError(RegistryError):
    """The node had a new password at the broker a moment ago; the one that it has begun comes later."""

    reason = "RenewedJustNow"
    retryable = True
    exit_code = ExitCode.TRY_AGAIN


class RegistryAuthError(RegistryError):
    """The relay's broker does not accept this node's or token's credentials."""

    reason = "RegistryAuthRefused"
    retryable = True  # a relay that starts anew may not have read its registry yet


class NotCommittedError(RegistryError):
    """The registry's database cannot be written now; nothing was granted, and nothing is lost."""

    reason = NotRecordedError.reason
    retryable = True


class TokenError(RegistryError):
    """A token is malformed, unknown, expired, used up, or for something else."""

    reason = "TokenRefused"


class UntrustedError(RegistryError):
    """A certificate chain or a signature does not lead to the network this node belongs to."""

    reason = "Untrusted"


class LeaseConflictError(RegistryError):
    """Hostname, overlay IP or preferred rank is already leased to another node."""

    reason = "LeaseConflict"


class NodeInUseError(RegistryError):
    """The node is there and uses the lease that is to be taken from it."""

    reason = "NodeOnline"
    retryable = True
    exit_code = ExitCode.TRY_AGAIN


class AddressPoolExhaustedError(RegistryError):
    """No free address is left in the overlay's network."""

    reason = "AddressPoolExhausted"


class RayClusterError(EdgelinkError):
    """Ray could not be started, joined or asked."""

    reason = "RayFailed"
    retryable = True


class HeadUnreachableError(RayClusterError):
    """The head's Ray port does not answer over the overlay."""

    reason = "HeadUnreachable"


class NoRayError(RayClusterError):
    """This node has no Ray, by its own configuration."""

    reason = "NoRay"
    exit_code = ExitCode.CONFIG
    retryable = False


class VersionMismatchError(RayClusterError):
    """Ray or Python of this node cannot work with the head's."""

    reason = "VersionMismatch"
    retryable = False


class PortBusyError(RayClusterError):
    """A port that Ray has to listen on is taken by another process."""

    reason = "PortBusy"


class PlacementError(EdgelinkError):
    """The ``cluster:`` section of a cluster file cannot be resolved."""

    reason = "PlacementInvalid"
    exit_code = ExitCode.CONFIG


class TrainingError(EdgelinkError):
    """The driver could not be started or was refused."""

    reason = "TrainingFailed"


class LabError(EdgelinkError):
    """The one-machine lab could not be built or used."""

    reason = "LabFailed"


def first_error(errors: BaseExceptionGroup[EdgelinkError]) -> EdgelinkError:
    """The first of the errors that ended a task group: the cause, as a rule."""
    first = errors.exceptions[0]
    return first_error(first) if isinstance(first, BaseExceptionGroup) else first


def first_failure(error: Exception) -> Exception:
    """The first failure of a group: the cause, as a rule. A defect goes before what it made fail."""
    if not isinstance(error, ExceptionGroup):
        return error
    defects = error.split(EdgelinkError)[1]
    return first_failure((defects or error).exceptions[0])
