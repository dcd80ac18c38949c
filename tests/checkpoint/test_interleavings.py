"""Writers, readers' deletions and collectors in one store, one step of any of them at a time.

A step is one operation on the place.  Each actor is a thread that waits for its turn before each operation;
which turn is next is drawn.  The oracle is what each writer was told to store."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterable

from hypothesis import given, settings
from hypothesis import strategies as st

from singularity_core.checkpoint import Store, WriterLostError
from singularity_core.checkpoint.collector import Collector

CHUNK = 4


class Place:
    """Files in memory; each operation is atomic."""

    place = "memory"

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}

    def put(self, key: str, data: bytes) -> None:
        self.files[key] = data

    def create(self, key: str, data: bytes) -> None:
        if key in self.files:
            raise FileExistsError(key)
        self.files[key] = data

    def get(self, key: str) -> bytes:
        if key not in self.files:
            raise FileNotFoundError(key)
        return self.files[key]

    def list(self, prefix: str) -> dict[str, int]:
        return {key: len(data) for key, data in self.files.items() if key.startswith(prefix)}

    def delete(self, keys: Iterable[str]) -> None:
        for key in keys:
            self.files.pop(key, None)

    def make_durable(self) -> None:
        pass

    def remove_leftovers(self, older_than_seconds: float) -> int:
        return 0


class Actor:
    """Runs a function that uses the store, one operation per `step`."""

    def __init__(self, place: Place, work: Callable[[Store], None]) -> None:
        self._place = place
        self._go = threading.Semaphore(0)
        self._rests = threading.Semaphore(0)
        self.error: BaseException | None = None
        self.ended = False
        self._thread = threading.Thread(target=self._run, args=(work,), daemon=True)
        self._thread.start()
        self._rests.acquire()

    def step(self) -> None:
        self._go.release()
        self._rests.acquire()
        if self.error is not None:
            raise self.error

    def _run(self, work: Callable[[Store], None]) -> None:
        try:
            work(Store(self, threads=0, chunk_bytes=CHUNK))  # type: ignore[arg-type]
        except BaseException as error:
            self.error = error
        self.ended = True
        self._rests.release()

    def _turn(self) -> None:
        self._rests.release()
        self._go.acquire()

    @property
    def place(self) -> str:
        return "memory"

    def put(self, key: str, data: bytes) -> None:
        self._turn()
        self._place.put(key, data)

    def create(self, key: str, data: bytes) -> None:
        self._turn()
        self._place.create(key, data)

    def get(self, key: str) -> bytes:
        self._turn()
        return self._place.get(key)

    def list(self, prefix: str) -> dict[str, int]:
        self._turn()
        return self._place.list(prefix)

    def delete(self, keys: Iterable[str]) -> None:
        for key in sorted(keys):
            self._turn()
            self._place.delete([key])

    def make_durable(self) -> None:
        pass

    def remove_leftovers(self, older_than_seconds: float) -> int:
        return 0


letters = st.sampled_from([b"aaaa", b"bbbb", b"cccc"])  # few, so that chunks are inherited
contents = st.lists(letters, min_size=1, max_size=3)
programs = st.lists(
    st.one_of(
        st.tuples(st.just("write"), st.lists(contents, min_size=1, max_size=2)),
        st.tuples(st.just("gc"), st.sampled_from([1, 2])),
        st.tuples(st.just("delete all"), st.just(1)),
        # Takes everybody else for dead, as a clock that is far ahead would.
        st.tuples(st.just("rash gc"), st.just(1)),
    ),
    min_size=2,
    max_size=4,
)


@settings(max_examples=150, deadline=None)
@given(first=contents, program=programs, seed=st.integers(0, 2**32))
def test_no_order_of_steps_harms_a_committed_checkpoint(
    first: list[bytes], program: list[tuple[str, object]], seed: int
) -> None:
    """Whatever is committed can be restored, what `commit` returned for is there unless it was collected, and
    when all is quiet a collection leaves nothing that nobody needs."""
    place = Place()
    stored: dict[str, bytes] = {}

    def write(store: Store, rounds: list[list[bytes]]) -> None:
        for pieces in rounds:
            with store.write("job") as writer:
                stored[writer.checkpoint] = b"".join(pieces)
                try:
                    writer.add("data", "test", b"".join(pieces))
                    writer.commit()
                except WriterLostError:
                    stored[writer.checkpoint] = b"lost"

    def delete_all(store: Store) -> None:
        store.delete([manifest.checkpoint for manifest in store.checkpoints()])
        store.gc()

    def collect(store: Store, keep: int, lease_seconds: float) -> None:
        Collector(store._catalogue, lease_seconds=lease_seconds).collect(keep=keep, pins=(), dry_run=False)

    write(Store(place, threads=0, chunk_bytes=CHUNK), [first])
    actors = []
    for what, argument in program:
        if what == "write":
            actors.append(Actor(place, lambda store, rounds=argument: write(store, rounds)))  # type: ignore[misc]
        elif what == "delete all":
            actors.append(Actor(place, delete_all))
        else:
            lease = -1.0 if what == "rash gc" else 3600.0
            actors.append(Actor(place, lambda store, keep=argument, lease=lease: collect(store, keep, lease)))  # type: ignore[misc]
    try:
        # Drawn from a seed: hypothesis' own lists are mostly too short to bring all actors to their ends.
        turns = random.Random(seed)
        while running := [actor for actor in actors if not actor.ended]:
            actor = turns.choice(running)
            # Bursts, or no actor would ever stand still while another one does all of its work.
            for _ in range(turns.choice((1, 1, 3, 10, 30))):
                if not actor.ended:
                    actor.step()
                    check(place, stored)
    finally:
        for actor in actors:
            while not actor.ended:
                actor.step()
    check(place, stored)
    quiet = Store(place, threads=0, chunk_bytes=CHUNK)
    quiet.gc(keep=1)
    check(place, stored)
    needed = {key for manifest in quiet.checkpoints() for key in manifest.keys}
    assert set(place.list("chunks/")) == needed
    assert place.list("markers/") == place.list("retired/") == {}
    assert len(quiet.checkpoints()) <= 1


def check(place: Place, stored: dict[str, bytes]) -> None:
    """All that is committed at this moment is whole and right."""
    store = Store(place, threads=0, chunk_bytes=CHUNK)
    assert store.verify() == []
    for manifest in store.checkpoints():
        chunks = manifest.objects[0].chunks
        data = b"".join(place.get(chunk.key)[1:] for chunk in chunks)
        assert data == stored[manifest.checkpoint]
