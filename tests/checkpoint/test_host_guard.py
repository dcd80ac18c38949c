"""What the guard refuses, from facts that somebody made up."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from singularity_core.checkpoint.host import Allowed, Facts, judge
from singularity_core.checkpoint.host.facts import (
    Connection,
    Descriptor,
    FileType,
    Mapping,
    Outsider,
    Process,
)

NETWORK = 7
SHARED = (1, 100)
ROOT = Process(10, "train", session=10, group=10, network=NETWORK)
CHILD = Process(11, "loader", session=10, group=10, network=NETWORK)
OUTSIDER = Outsider(99, "outsider")
LIVING = frozenset({1, 10, 11, 99})


def process(*has: Descriptor | Mapping, **changes: object) -> Process:
    """The tree's first one, with these."""
    descriptors = tuple(each for each in has if isinstance(each, Descriptor))
    mappings = tuple(each for each in has if isinstance(each, Mapping))
    return replace(ROOT, descriptors=descriptors, mappings=mappings, **changes)  # type: ignore[arg-type]


def facts(
    *processes: Process,
    outsiders: Iterable[Outsider] = (OUTSIDER,),
    connections: Iterable[Connection] = (),
    unix_peers: dict[int, int] | None = None,
) -> Facts:
    """About a tree of these."""
    return Facts(processes, tuple(outsiders), LIVING, {NETWORK: tuple(connections)}, unix_peers or {})


def said(found: Facts, allowed: Allowed = Allowed()) -> list[str]:  # noqa: B008
    """The verdicts, without the process."""
    verdicts = judge(found, allowed)
    assert all(it.remedy for it in verdicts)
    return [verdict.what for verdict in verdicts]


def regular(target: str, *, unlinked: bool = False) -> Descriptor:
    """A file that the tree can write to."""
    return Descriptor(5, target, FileType.REGULAR, SHARED, writable=True, unlinked=unlinked)


def anonymous(kind: str, detail: int | None = None) -> Descriptor:
    """A kernel object."""
    return Descriptor(5, f"anon_inode:{kind}", FileType.ANONYMOUS, (0, 1), detail=detail)


def device(target: str, major: int, minor: int, detail: int | None = None) -> Descriptor:
    """A character device."""
    return Descriptor(5, target, FileType.CHARACTER, (0, 1), device=(major, minor), detail=detail)


def sock(inode: int, protocol: str = "TCP") -> Descriptor:
    """A socket."""
    return Descriptor(5, f"socket:[{inode}]", FileType.SOCKET, (0, inode), protocol=protocol)


def mapping(path: str, *, shared: bool = True, writable: bool = True) -> Mapping:
    """Of what an outsider may have, too."""
    return Mapping(0x1000, path, SHARED, shared, writable)


HARMLESS = [
    regular("/data/input"),
    regular("/data/gone (deleted)", unlinked=True),
    regular("/memfd:x (deleted)", unlinked=True),
    Descriptor(5, "pipe:[5]", FileType.FIFO, (2, 5)),
    Descriptor(5, "/data", FileType.DIRECTORY, (1, 1)),
    *map(anonymous, ("[eventpoll]", "[signalfd]", "[timerfd]", "inotify")),
    anonymous("[eventfd]", 3),
    anonymous("[pidfd]", 11),
    anonymous("[pidfd]", 1234),
    Descriptor(5, "pidfd:[77]", FileType.ANONYMOUS, (0, 1), detail=11),
    device("/dev/null", 1, 3),
    device("/dev/zero", 1, 5),
    device("/dev/urandom", 1, 9),
    sock(1),
    sock(1, "UDP"),
    sock(1, "UNIX-STREAM"),
    sock(1, ""),
    mapping("/usr/lib/libc.so", shared=False, writable=False),
    mapping("/dev/shm/job"),
    mapping("/dev/zero (deleted)"),
    mapping("/SYSV00000000 (deleted)"),
]


@pytest.mark.parametrize("has", HARMLESS, ids=str)
def test_what_the_tree_has_alone_is_carried(has: Descriptor | Mapping) -> None:
    """Each of these comes back as it was."""
    assert said(facts(process(has), CHILD)) == []


REFUSED = [
    (anonymous("[io_uring]"), "kind that cannot be carried"),
    (anonymous("[userfaultfd]"), "kind that cannot be carried"),
    (anonymous("[perf_event]"), "kind that cannot be carried"),
    (anonymous("[something-new]"), "kind that cannot be carried"),
    (anonymous("[pidfd]", 99), "refers to process 99"),
    (Descriptor(5, "pidfd:[77]", FileType.ANONYMOUS, (0, 1), detail=99), "refers to process 99"),
    (sock(1, "AF_VSOCK"), "of the kind AF_VSOCK"),
    (device("/dev/pts/3", 136, 3), "terminal of somebody else"),
    (device("/dev/tty", 5, 0), "terminal of somebody else"),
    (device("/dev/ttyS0", 4, 64), "terminal of somebody else"),
    (device("/dev/nvidia0", 195, 0), "device whose state cannot be carried"),
    (Descriptor(5, "/dev/sda", FileType.BLOCK, (0, 1), device=(1, 3)), "device whose state"),
    (regular("/dmabuf:x"), "only its driver can read"),
    (regular("/secretmem (deleted)"), "only its driver can read"),
    (mapping("anon_inode:[io_uring]"), "memory of a kernel object"),
    (mapping("anon_inode:[perf_event]"), "memory of a kernel object"),
    (mapping("/dmabuf:x"), "only its driver can read"),
    (mapping("/secretmem (deleted)", shared=False), "only its driver can read"),
    (mapping("/dev/nvidia0"), "memory of a device"),
]


@pytest.mark.parametrize(("has", "what"), REFUSED, ids=str)
def test_what_cannot_be_carried_is_refused_by_name(has: Descriptor | Mapping, what: str) -> None:
    """The verdict names the process, the descriptor or mapping, and what is wrong with it."""
    [verdict] = judge(facts(process(has), CHILD))
    name = f"descriptor 5 ({has.target})" if isinstance(has, Descriptor) else f"at 0x1000 ({has.path})"
    assert name in verdict.what
    assert what in verdict.what
    assert str(verdict).startswith("Process 10 (train): ")
    assert verdict.remedy


@pytest.mark.parametrize("here", [True, False])
@pytest.mark.parametrize("there", ["nothing", "reads", "writes"])
@pytest.mark.parametrize("kind", ["memfd", "unlinked", "mapping"])
def test_memory_that_is_written_on_one_side_and_seen_on_the_other(kind: str, here: bool, there: str) -> None:
    """Shared memory is refused if an outsider has it, unless neither side can write to it."""
    has: Descriptor | Mapping
    if kind == "mapping":
        has = mapping("/dev/shm/ring", writable=here)
    else:
        target = "/memfd:ring (deleted)" if kind == "memfd" else "/data/ring (deleted)"
        has = replace(regular(target, unlinked=True), writable=here)
    identities = frozenset({SHARED})
    other = {
        "nothing": OUTSIDER,
        "reads": replace(OUTSIDER, readable=identities),
        "writes": replace(OUTSIDER, writable=identities),
    }[there]
    found = facts(process(has), outsiders=[OUTSIDER, other])
    refused = there == "writes" or (there == "reads" and here)
    assert [("process 99 (outsider)" in what) for what in said(found)] == [True] * refused
    path = has.path if isinstance(has, Mapping) else has.target.removesuffix(" (deleted)")
    assert said(found, Allowed(paths=(path,))) == []


def test_a_writer_is_found_in_any_process_of_the_tree() -> None:
    """What one process only reads and another of the tree writes is refused if an outsider reads it."""
    other = replace(OUTSIDER, readable=frozenset({SHARED}))
    reader, writer = mapping("/dev/shm/x", writable=False), mapping("/dev/shm/x")
    child = replace(CHILD, mappings=(writer,))
    assert len(said(facts(process(reader), child, outsiders=[other]))) == 2
    assert said(facts(process(reader), outsiders=[other])) == []


def test_one_mapping_in_many_pieces_is_named_once() -> None:
    """The pieces of one file in a process make one verdict."""
    other = replace(OUTSIDER, writable=frozenset({SHARED}))
    pieces = [replace(mapping("/dev/shm/x"), start=0x1000 * number) for number in range(1, 5)]
    assert len(said(facts(process(*pieces), outsiders=[other]))) == 1


def test_a_private_mapping_of_a_shared_file_is_carried() -> None:
    """Others' writes to the file are no part of it."""
    other = replace(OUTSIDER, writable=frozenset({SHARED}))
    assert said(facts(process(mapping("/lib/x.so", shared=False)), outsiders=[other])) == []


@pytest.mark.parametrize("end", ["readable", "writable"])
def test_pipes_to_others(end: str) -> None:
    """A pipe that an outsider holds, whichever end, is refused unless it is given anew at restore."""
    pipe = Descriptor(1, "pipe:[5]", FileType.FIFO, (2, 5), writable=True)
    found = facts(process(pipe), outsiders=[replace(OUTSIDER, **{end: frozenset({(2, 5)})})])
    [what] = said(found)
    assert "descriptor 1 (pipe:[5]) is a pipe that process 99 (outsider)" in what
    assert said(found, Allowed(pipes=frozenset({5}))) == []
    assert len(said(found, Allowed(pipes=frozenset({6})))) == 1


def test_named_pipes_can_be_allowed_by_path() -> None:
    """One that whoever restores makes again."""
    pipe = Descriptor(1, "/run/job/fifo", FileType.FIFO, SHARED)
    found = facts(process(pipe), outsiders=[replace(OUTSIDER, writable=frozenset({SHARED}))])
    assert len(said(found)) == 1
    assert said(found, Allowed(paths=("/run/job",))) == []


@pytest.mark.parametrize(
    ("allowed", "path", "fits"),
    [
        ("/dev/shm/job", "/dev/shm/job", True),
        ("/dev/shm/job/", "/dev/shm/job/ring", True),
        ("/dev/shm/job", "/dev/shm/job/ring (deleted)", True),
        ("/dev/shm/job", "/dev/shm/job2", False),
        ("/dev/shm/job/ring", "/dev/shm/job", False),
    ],
)
def test_a_path_allows_itself_and_what_is_in_it(allowed: str, path: str, fits: bool) -> None:
    """A name that only begins alike is not meant."""
    found = facts(process(mapping(path)), outsiders=[replace(OUTSIDER, writable=frozenset({SHARED}))])
    assert (said(found, Allowed(paths=(allowed,))) == []) == fits


def test_eventfds_of_others() -> None:
    """An eventfd is known by its id, as all eventfds are one inode."""
    for theirs, refused in ((3, True), (4, False)):
        found = facts(
            process(anonymous("[eventfd]", 3)),
            outsiders=[replace(OUTSIDER, eventfds=frozenset({theirs}))],
        )
        assert bool(said(found)) == refused


def test_unix_sockets() -> None:
    """A Unix socket is carried with its peer only."""
    assert said(facts(process(sock(1, "UNIX"), sock(2, "UNIX")), unix_peers={1: 2, 2: 1})) == []
    [what] = said(facts(process(sock(1, "UNIX")), unix_peers={1: 2, 2: 1}))
    assert "connected to a process outside" in what
    apart = replace(CHILD, descriptors=(sock(2, "UNIX"),))
    assert said(facts(process(sock(1, "UNIX")), apart, unix_peers={1: 2, 2: 1})) == []


HERE, THERE = ("127.0.0.1", 1000), ("127.0.0.1", 2000)


@pytest.mark.parametrize("state", ["ESTABLISHED", "SYN_SENT", "FIN_WAIT1", "LAST_ACK", "CLOSE_WAIT"])
@pytest.mark.parametrize("peer", ["in the tree", "outside", "of nobody", "elsewhere"])
def test_connections(state: str, peer: str) -> None:
    """A connection is carried if its other end is of the tree, or is closed and only lingers; from a peer on
    another machine that has closed nothing more can come."""
    connections = [Connection(1, HERE, THERE, state)]
    if peer != "elsewhere":
        connections.append(Connection({"of nobody": 0}.get(peer, 2), THERE, HERE, state))
    has = [sock(1), sock(2)] if peer == "in the tree" else [sock(1)]
    refused = peer == "outside" or (peer == "elsewhere" and state != "CLOSE_WAIT")
    found = said(facts(process(*has), connections=connections))
    assert bool(found) == refused
    if refused:
        assert f"({state}) from 127.0.0.1:1000 to 127.0.0.1:2000" in found[0]


@pytest.mark.parametrize("state", ["LISTEN", "CLOSE"])
def test_sockets_without_a_peer(state: str) -> None:
    """Who listens, or is not connected, is carried."""
    assert said(facts(process(sock(1)), connections=[Connection(1, HERE, ("0.0.0.0", 0), state)])) == []


def test_a_connection_between_address_families() -> None:
    """A client of IPv4 at a listener of IPv6 is one connection with two spellings."""
    mapped_here, mapped_there = ("::ffff:127.0.0.1", 1000), ("::ffff:127.0.0.1", 2000)
    connections = [
        Connection(1, HERE, THERE, "ESTABLISHED"),
        Connection(2, mapped_there, mapped_here, "ESTABLISHED"),
    ]
    assert said(facts(process(sock(1), sock(2, "TCPv6")), connections=connections)) == []


def test_the_same_address_in_another_network_is_another() -> None:
    """Whoever has the other end there is not meant."""
    other = replace(CHILD, network=8, descriptors=(sock(2),))
    tables = {
        NETWORK: (Connection(1, HERE, THERE, "ESTABLISHED"),),
        8: (Connection(2, THERE, HERE, "ESTABLISHED"),),
    }
    assert len(judge(Facts((process(sock(1)), other), (), LIVING, tables))) == 2


def test_terminals_of_the_tree() -> None:
    """A terminal comes with the one who holds its master."""
    slave, master = device("/dev/pts/3", 136, 3), device("/dev/ptmx", 5, 2, detail=3)
    own = device("/dev/tty", 5, 0)
    assert said(facts(process(slave, own, master, terminal=(136, 3)))) == []
    assert len(said(facts(process(slave, terminal=(136, 3))))) == 2
    far = device("/dev/pts/300", 137, 44)
    assert said(facts(process(far, device("/dev/ptmx", 5, 2, detail=300)))) == []


def test_relations_to_others() -> None:
    """Tracers, sessions and groups of others are refused; those whose leader has ended are made up."""
    assert "process 99 traces it" in said(facts(process(tracer=99)))[0]
    assert "session is led by process 99" in said(facts(process(session=99)))[0]
    assert "process group is led by process 99" in said(facts(process(group=99)))[0]
    assert said(facts(process(session=98, group=97))) == []
    assert said(facts(process(), replace(CHILD, session=11, group=11))) == []


def test_system_v_memory() -> None:
    """It is carried with an IPC namespace of its own."""
    has = mapping("/SYSV0000002a (deleted)")
    assert "System V" in said(facts(process(has, shares_ipc=True)))[0]
    assert said(facts(process(has))) == []


def test_files_in_memory_are_listed() -> None:
    """Files of whose contents CRIU dumps nothing are named once, for whoever copies them."""
    named = replace(mapping("/dev/shm/b"), in_memory=True)
    opened = replace(regular("/dev/shm/a"), in_memory=True)
    child = replace(CHILD, mappings=(named,))
    found = facts(process(named, opened, regular("/data/x"), mapping("/data/y")), child)
    assert found.files_in_memory == ("/dev/shm/a", "/dev/shm/b")


def test_what_has_arrived_is_that_of_the_tree() -> None:
    """By network and socket: what others have received does not count."""
    connections = [Connection(1, HERE, THERE, "ESTABLISHED", 5), Connection(2, THERE, HERE, "ESTABLISHED", 7)]
    found = facts(
        process(sock(1)), replace(CHILD, network=8, descriptors=(sock(2),)), connections=connections
    )
    assert found.unread == {(NETWORK, 1): 5}


everything = st.lists(st.sampled_from(HARMLESS + [has for has, _ in REFUSED]), max_size=6)


@given(everything, everything)
def test_nothing_hides_anything_else(
    first: list[Descriptor | Mapping], second: list[Descriptor | Mapping]
) -> None:
    """What is refused alone is refused in any company, and what is carried alone is not refused."""
    refused = {id(has) for has, _ in REFUSED}
    child = replace(process(*second), pid=11, name="loader")
    verdicts = judge(facts(process(*first), child))
    for pid, has in ((10, first), (11, second)):
        wanted = {str(it) for it in has if id(it) in refused}
        assert (len({it.what for it in verdicts if it.pid == pid}) > 0) == bool(wanted)
        descriptors = [it for it in has if id(it) in refused and isinstance(it, Descriptor)]
        found = [it for it in verdicts if it.pid == pid and it.what.startswith("descriptor")]
        assert len(found) == len(descriptors)
