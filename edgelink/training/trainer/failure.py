"""The one way in which the trainer fails on purpose: a sentence for people and an exit status."""

from __future__ import annotations

FAILED, USAGE, TRY_AGAIN = 1, 2, 75  # as in edgelink.errors.ExitCode, which is not shipped


class TrainerError(Exception):
    """What failed, where and why; ``hint`` says what to do."""

    def __init__(self, message: str, hint: str = "", *, exit_status: int = FAILED) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.exit_status = exit_status

    def __str__(self) -> str:
        return f"{self.message}. {self.hint}" if self.hint else self.message
