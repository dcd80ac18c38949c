"""The states that ``checkpoint`` and ``preempt`` take a job through.  Pure: times are arguments, and what
really happens to processes is `CheckpointSteps`.

::

    idle --> preparing --> cutting --> writing --> capturing --checkpoint--> releasing --> storing --> idle
                                                       |
                                                       +---------preempt--> storing --> ending (exit code 85)

A checkpoint is copied while the job stands still, and stored when it runs again.  A preempted job stands
still until the checkpoint is committed: whatever goes wrong before, or when somebody lets it go on, it goes
on as if nobody had asked.  Then it is ended, whatever goes wrong.  A job that was paused before is copied
where it stands, and stays paused."""

from __future__ import annotations

import enum
import math
from dataclasses import dataclass
from typing import Protocol

from .cut_sequence import CutSequence, LetGo, Part, Step, ToCut
from .pausing import Pausing, Told

WRITING_SECONDS = 120.0
PREPARING_SECONDS = 120.0
ENDING_SECONDS = 60.0


class CheckpointState(enum.Enum):
    """How far a checkpoint is."""

    IDLE = "idle"
    PREPARING = "preparing"
    """The store is opened, CRIU is tried, and memory for copies is taken; the job runs."""
    CUTTING = "cutting"
    """All ranks are brought to one point."""
    CUT = "cut"
    """They stand there."""
    WRITING = "writing"
    """The proxies write down their sessions."""
    CAPTURING = "capturing"
    """Processes, device memory and files are copied."""
    RELEASING = "releasing"
    """The job is let go."""
    STORING = "storing"
    """The copies go to the store."""
    ENDING = "ending"
    """The checkpoint is committed, and the preempted job ends."""


@dataclass(frozen=True)
class CheckpointOrder:
    """What is asked for."""

    place: str
    """Directory or URL of the store."""
    timeout: float
    """Seconds until all ranks must stand at one point."""
    preempt: bool = False
    """The job is to end once the checkpoint is committed."""
    dry_run: bool = False
    """Only look whether anything stands in the way."""
    keep: int | None = None
    """How many checkpoints of the job to keep, this one included; None: all."""


class CheckpointSteps(Protocol):
    """What a checkpoint does to the job's processes.  No call blocks.  `LaunchError` and `StoreError`: it
    cannot be done; the job is as it was."""

    def look(self, order: CheckpointOrder) -> None:
        """Sees whether anything stands in the way, and does nothing else; `prepared` says when it has."""

    def prepare(self, order: CheckpointOrder) -> None:
        """Gets ready, as far as that is possible while the job runs."""

    def prepared(self) -> bool:
        """Whether all is ready."""

    def write(self) -> None:
        """All ranks stand at the cut: tells the proxies to write down their sessions."""

    def written(self) -> bool:
        """Whether all have.  `CutError` with the reason when one cannot."""

    def capture(self) -> None:
        """Copies all that must fit; when the job is not to be preempted, its processes may run afterwards."""

    def captured(self) -> bool:
        """Whether all is copied."""

    def store(self) -> None:
        """Puts it into the store."""

    def stored(self) -> bool:
        """Whether the checkpoint is committed."""

    def end(self) -> None:
        """Ends the job's processes, which stand still: no end of a rank is a failure from now on."""

    def ended(self) -> bool:
        """Whether they are gone."""

    def report(self) -> str:
        """The checkpoint, which is committed, in one line for people; or what a look has found."""

    def undo(self) -> None:
        """Lets the processes go on, and throws away what was copied.  Harmless when repeated, and when
        nothing was begun; what was committed stays."""


class Checkpointing:
    """One job's checkpoints.  After each call, `tick` is due in `next_tick` seconds."""

    def __init__(self, pausing: Pausing, steps: CheckpointSteps) -> None:
        self._steps = steps
        self._preempts = False
        self._sequence = CutSequence(
            pausing,
            CheckpointState.IDLE,
            holder="the job is being checkpointed",
            what="checkpoint",
            undo=steps.undo,
        )
        self.abandon = self._sequence.abandon
        self.next_tick = self._sequence.next_tick
        self.tick = self._sequence.tick

    @property
    def state(self) -> CheckpointState:
        """How far the one is that is under way."""
        return self._sequence.state

    @property
    def busy(self) -> bool:
        """Whether one is under way."""
        return self._sequence.busy

    def checkpoint(self, order: CheckpointOrder, now: float, told: Told) -> None:
        """Asks for one."""
        if not self.busy:
            self._preempts = order.preempt
        self._sequence.start(self._parts(order), self._steps.report, now, told, also_paused=True)

    def cancel(self, why: str, now: float) -> bool:
        """The job is not to be preempted after all; False when it was not to be, or ends already."""
        return self._preempts and self._sequence.cancel(why, now)

    def _parts(self, order: CheckpointOrder) -> list[Part[CheckpointState]]:
        steps, states = self._steps, CheckpointState
        late = f"The checkpoint was not prepared within {PREPARING_SECONDS:.0f} s (does the store answer?)."
        prepare = steps.look if order.dry_run else steps.prepare
        preparing = Step(states.PREPARING, lambda: prepare(order), steps.prepared, PREPARING_SECONDS, late)
        if order.dry_run:
            return [preparing]
        parts: list[Part[CheckpointState]] = [
            preparing,
            ToCut(states.CUTTING, states.CUT, order.timeout),
            Step(
                states.WRITING, steps.write, steps.written, WRITING_SECONDS,
                f"The proxies have not written their sessions within {WRITING_SECONDS:.0f} s.",
            ),
            Step(states.CAPTURING, steps.capture, steps.captured, math.inf),  # CRIU has deadlines of its own
        ]  # fmt: skip
        store = Step(states.STORING, steps.store, steps.stored, math.inf)
        if not order.preempt:
            return [*parts, LetGo(states.RELEASING, lambda: None), store]
        late = f"The job's processes have not ended within {ENDING_SECONDS:.0f} s; the launcher kills them."
        end = Step(states.ENDING, steps.end, steps.ended, ENDING_SECONDS, late, final=True)
        return [*parts, store, end]
