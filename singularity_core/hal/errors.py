"""What can go wrong on a device, as a small tree of exceptions.

Every error says what happened (``cause``) and what to do about it (``remedy``), and carries a ``code`` that
is compatible with CUresult, so that it crosses the native function table and the proxy's wire unchanged.

Two distinctions matter to callers, and are therefore types:

* `Unsupported` is permanent: this backend cannot do that, anywhere.  `Unavailable` is about the environment:
  the same call may work on another machine, or after the remedy.
* A *sticky* error (``sticky`` is true) ends the context that it happened in: every later call on that device
  object answers the same error until it is closed.  After any other error the device is as it was before the
  call.
"""

# ruff: noqa: N818 - the names say what happened; `HalError` is the one that is caught as a kind.

from __future__ import annotations

from typing import ClassVar


class HalError(Exception):
    """The root of all errors that the HAL raises.  Raised itself only for codes that have no class of their
    own.

    `cause` is one sentence: what happened, with the actual and the required value.  `remedy` is one sentence:
    what the reader can do.  `code` is the CUresult-compatible number.
    """

    code: int = 999
    sticky: ClassVar[bool] = False
    default_remedy: ClassVar[str] = "Run `singularity-ctl doctor`, and report the call that is named here."

    def __init__(self, cause: str, *, remedy: str | None = None, code: int | None = None) -> None:
        self.cause = cause
        self.remedy = self.default_remedy if remedy is None else remedy
        if code is not None:
            self.code = code
        super().__init__(cause, self.remedy)

    def __reduce__(self) -> tuple[object, ...]:
        return _rebuild, (type(self), self.cause, self.remedy, self.code)

    def __str__(self) -> str:
        return f"{self.cause} {self.remedy}".rstrip()


def _rebuild(kind: type[HalError], cause: str, remedy: str, code: int) -> HalError:
    return kind(cause, remedy=remedy, code=code)


class InvalidArgument(HalError):
    """An argument is outside of what the method's documentation allows; nothing was done."""

    code = 1
    default_remedy = "Correct the argument that is named here."


class OutOfMemory(HalError):
    """The device (or page-locked host memory) has not enough left; nothing was allocated."""

    code = 2
    default_remedy = "Ask for less, close what is not needed, or give the device more memory."


class InvalidHandle(HalError):
    """A stream or event that was never created on this device, or was destroyed; nothing was done."""

    code = 400
    default_remedy = "Use handles only on the device that made them, and not after they were destroyed."


class InvalidState(HalError):
    """The call does not fit the object's state: arena opened twice, device closed, event never recorded."""

    code = 401
    default_remedy = "Follow the order that the method's documentation states."


class Unsupported(HalError):
    """This backend lacks the capability, on every machine; asking again is of no use."""

    code = 801
    default_remedy = "Look at Device.capabilities first, or choose a backend that has the capability."


class Unavailable(HalError):
    """The environment lacks something (driver, device, library, permission); the remedy says what."""

    code = 100
    default_remedy = "Run `singularity-ctl doctor` to see what is missing on this machine."


class IllegalAddress(HalError):
    """Work on the device touched memory that is not its own, freed or never allocated; sticky."""

    code = 700
    sticky = True
    default_remedy = (
        "Close the device and open it again; look for an index or pointer fault in what was launched."
    )


class MisalignedAddress(HalError):
    """Work on the device touched memory at an address that its type does not allow; sticky."""

    code = 716
    sticky = True
    default_remedy = "Close the device and open it again; align the address to the size of the type."


class ExecutionFailed(HalError):
    """Work on the device stopped for another reason (trap, assertion, time-out); sticky."""

    code = 719
    sticky = True
    default_remedy = "Close the device and open it again; run the work alone to find the kernel that failed."


class DeviceLost(HalError):
    """The device itself is gone (hardware error, reset, driver unloaded); its memory is lost, and it is
    sticky."""

    code = 214
    sticky = True
    default_remedy = "Restore the job from its last checkpoint on another device; have this one checked."


# Codes of the CUDA driver's documented CUresult.
_BY_CODE: dict[int, type[HalError]] = {
    1: InvalidArgument, 2: OutOfMemory, 3: InvalidState, 4: InvalidState, 46: Unavailable, 100: Unavailable,
    101: InvalidArgument, 200: InvalidArgument, 201: InvalidState, 208: InvalidState, 209: Unsupported,
    214: DeviceLost, 218: Unsupported, 221: Unavailable, 222: Unsupported, 400: InvalidHandle,
    401: InvalidState, 500: InvalidArgument, 700: IllegalAddress, 702: ExecutionFailed, 709: InvalidState,
    710: ExecutionFailed, 712: InvalidState, 713: InvalidState, 714: ExecutionFailed, 715: ExecutionFailed,
    716: MisalignedAddress, 717: IllegalAddress, 718: ExecutionFailed, 719: ExecutionFailed, 801: Unsupported,
    803: Unavailable, 804: Unavailable,
}  # fmt: skip


def error_from_code(code: int, call: str, detail: str = "", *, remedy: str | None = None) -> HalError:
    """The exception for a CUresult-compatible `code` that `call` answered; `detail` holds the driver's words.

    A code without a class of its own gives a `HalError` that carries it."""
    kind = _BY_CODE.get(code, HalError)
    words = f" ({detail})" if detail else ""
    return kind(f"{call} answered error {code}{words}.", remedy=remedy, code=code)
