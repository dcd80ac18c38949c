"""The replay log against a list that is filtered anew after every call."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from .conftest import PureModule

CREATE, SET = 1, 2
NAMES = st.integers(1, 12)


@dataclass(frozen=True)
class Record:
    """One record, as the log returns it."""

    type: int
    op: int
    context: int
    object: int
    key: int
    made: tuple[int, ...]
    needs: tuple[int, ...]
    payload: bytes


def walk(module: PureModule, data: bytes) -> tuple[int, list[Record]]:
    """All records of a serialised log, and what the walk returned."""
    ffi, found = module.ffi, []

    @ffi.callback("sg_log_visitor")  # type: ignore[untyped-decorator]
    def visit(argument: Any, r: Any) -> int:
        found.append(
            Record(r.type, r.op, r.context, r.object, r.key, tuple(ffi.unpack(r.made, r.made_count)),
                   tuple(ffi.unpack(r.needs, r.need_count)), bytes(ffi.buffer(r.payload, r.bytes)))
        )  # fmt: skip
        return 0

    return module.lib.sg_log_walk(ffi.from_buffer("uint8_t[]", data), len(data), visit, ffi.NULL), found


def serialise(module: PureModule, log: Any) -> bytes:
    size = module.lib.sg_log_serialise(log, module.ffi.NULL, 0)
    out = module.ffi.new("uint8_t[]", size)
    assert module.lib.sg_log_serialise(log, out, size - 1) == size
    assert bytes(module.ffi.buffer(out, size)) == bytes(size), "written although there was no room"
    assert module.lib.sg_log_serialise(log, out, size) == size
    return bytes(module.ffi.buffer(out, size))


def add(module: PureModule, log: Any, record: Record) -> None:
    ffi = module.ffi
    made, needs = ffi.new("uint64_t[]", list(record.made)), ffi.new("uint64_t[]", list(record.needs))
    payload = ffi.new("uint8_t[]", record.payload)
    raw = ffi.new("struct sg_log_record *")
    raw.type, raw.op, raw.context = record.type, record.op, record.context
    raw.object, raw.key = record.object, record.key
    raw.made, raw.made_count = made, len(record.made)
    raw.needs, raw.need_count = needs, len(record.needs)
    raw.payload, raw.bytes = payload, len(record.payload)
    assert module.lib.sg_log_add(log, raw) == 0


class LogMachine(RuleBasedStateMachine):
    """Creations that need each other, settings, and destructions."""

    module: ClassVar[PureModule]

    def __init__(self) -> None:
        super().__init__()
        self.log = self.module.lib.sg_log_new()
        self.model: list[Record] = []
        self.count = 0

    def teardown(self) -> None:
        self.module.lib.sg_log_free(self.log)

    def forget(self, name: int) -> None:
        """Destroys a name: its creation, its settings, and whatever needed it, all the way."""
        work = [name]
        while work:
            gone = work.pop()
            doomed = [r for r in self.model if r.type == CREATE and (r.object == gone or gone in r.needs)]
            self.model = [
                r for r in self.model if r not in doomed and not (r.type == SET and r.object == gone)
            ]
            for record in doomed:
                work.append(record.object)
                created = {r.object for r in self.model if r.type == CREATE}
                work.extend(m for m in record.made if m not in created)

    @rule(name=NAMES, also=st.lists(st.integers(13, 16), max_size=2, unique=True),
          needs=st.lists(NAMES, max_size=3, unique=True), payload=st.binary(max_size=20))  # fmt: skip
    def create(self, name: int, also: list[int], needs: list[int], payload: bytes) -> None:
        self.count += 1
        needs = [n for n in needs if n != name]
        record = Record(CREATE, self.count, 3, name, 0, (name, *also), tuple(needs), payload)
        add(self.module, self.log, record)
        if any(r.type == CREATE and r.object == name for r in self.model):
            self.forget(name)
        self.model.append(record)

    @rule(owner=st.integers(0, 16), key=st.integers(0, 3), payload=st.binary(max_size=20))
    def set(self, owner: int, key: int, payload: bytes) -> None:
        self.count += 1
        record = Record(SET, self.count, 0, owner, key, (), (), payload)
        add(self.module, self.log, record)
        self.model = [r for r in self.model if not (r.type == SET and (r.object, r.key) == (owner, key))]
        self.model.append(record)

    @rule(name=st.integers(1, 17))
    def destroy(self, name: int) -> None:
        self.module.lib.sg_log_remove(self.log, name)
        self.forget(name)

    @invariant()
    def agrees(self) -> None:
        assert self.module.lib.sg_log_entries(self.log) == len(self.model)
        assert walk(self.module, serialise(self.module, self.log)) == (0, self.model)


def test_log_agrees_with_a_filtered_list(pure: PureModule) -> None:
    """After any calls, the log holds exactly what is alive or set, in order, and gives it back unchanged."""
    LogMachine.module = pure
    relaxed = settings(max_examples=80, stateful_step_count=40, deadline=None,
                       suppress_health_check=list(HealthCheck))  # fmt: skip
    run_state_machine_as_test(LogMachine, settings=relaxed)


def test_log_is_bounded_by_what_lives(pure: PureModule) -> None:
    """A job that creates and destroys for ever has a log of constant size."""
    log = pure.lib.sg_log_new()
    add(pure, log, Record(CREATE, 1, 0, 1, 0, (1,), (), b"context"))
    sizes = set()
    for i in range(2000):
        name = 100 + i
        add(pure, log, Record(CREATE, 2, 0, name, 0, (name,), (1,), b"module"))
        for _ in range(3):
            add(pure, log, Record(SET, 3, 0, name, 7, (), (), b"attribute"))
        sizes.add(len(serialise(pure, log)))
        pure.lib.sg_log_remove(log, name)
    assert len(sizes) == 1
    assert pure.lib.sg_log_entries(log) == 1
    pure.lib.sg_log_free(log)


def test_long_chains_do_not_recurse(pure: PureModule) -> None:
    """Destroying the root of a chain of 200000 needs removes all of it without deep recursion."""
    log = pure.lib.sg_log_new()
    for i in range(1, 200001):
        add(pure, log, Record(CREATE, 1, 0, i, 0, (i,), (i - 1,), b""))
    pure.lib.sg_log_remove(log, 1)
    assert pure.lib.sg_log_entries(log) == 0
    pure.lib.sg_log_free(log)


@settings(max_examples=200, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.lists(st.tuples(st.integers(0, 400), st.integers(0, 255)), max_size=6), st.integers(0, 400))
def test_damaged_log_is_refused_or_read(pure: PureModule, changes: list[tuple[int, int]], cut: int) -> None:
    """A log with changed or missing bytes never leads outside of its buffer."""
    log = pure.lib.sg_log_new()
    for i in range(1, 4):
        add(pure, log, Record(CREATE, i, 0, i, 0, (i,), (i - 1,), bytes(i * 5)))
    data = bytearray(serialise(pure, log))
    pure.lib.sg_log_free(log)
    for at, value in changes:
        data[at % len(data)] = value
    result, records = walk(pure, bytes(data[: len(data) - cut % len(data)]) if cut % 2 else bytes(data))
    assert result in (0, -71, -12)
    assert len(records) <= 3
