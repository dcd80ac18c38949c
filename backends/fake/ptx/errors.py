"""What can be wrong with PTX, as the CUresult that a driver would answer with."""

from __future__ import annotations

INVALID_PTX = 218
UNSUPPORTED_VERSION = 222
NO_BINARY = 209
NOT_FOUND = 500
NOT_SUPPORTED = 801


class PtxError(Exception):
    """A refusal: `status` is a CUresult, the message names the line, the construct and, where there is one,
    the remedy.
    """

    def __init__(self, message: str, line: int = 0, status: int = NOT_SUPPORTED) -> None:
        self.status = status
        self.line = line
        super().__init__(f"line {line}: {message}" if line else message)


def invalid(message: str, line: int = 0) -> PtxError:
    return PtxError(message, line, INVALID_PTX)


def unsupported(what: str, line: int = 0) -> PtxError:
    return PtxError(f"{what} is not supported by the in-memory device", line, NOT_SUPPORTED)
