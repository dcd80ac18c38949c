"""The host image of a job: its processes, dumped with CRIU, kept in the store, made again from there.

Works on any tree of processes, given its first one, in whatever namespaces that is:

    criu = find_criu().command
    allowed = Allowed(paths=("/dev/shm/singularity-0/job",))  # which somebody else keeps in step
    verdicts = judge(scan(root), allowed)     # a look beforehand (--dry-run); nothing happens to the tree

    with Hold(root, place=Path("/dev/shm"), allowed=allowed) as held:  # from here on it stands still
        held.dump(criu, enter=box)            # judges again; images lie in memory
        ...                                   # copy what else must fit them: `Facts.files_in_memory`, logs
        held.go_on()
        with store.write(job) as writer:      # the tree runs meanwhile
            writer.add("device/0", "device-buffers", data)
            ingest(writer, held.images)
            writer.commit()

To preempt, call ``held.end()`` after the commit in place of ``go_on``.  And elsewhere, in a new box:

    with store.read(checkpoint) as reader:
        pid = restore(
            reader, place=Path("/dev/shm"), criu=criu, enter=box,
            inherit={"pipe:[4711]": log, "dev/shm/ring": ring},
        ).pid

``box`` is a command that runs another in the tree's namespaces, such as
``("nsenter", "--all", "--target", "4711")``.  CRIU takes a pid in there, so a job's pids should begin far
above those of a new box.

`facts`, `guard`, `criu_lines`, `page_map`, `page_index` and `packing` are pure.  `keeper` says what happens
when somebody is killed, `packing` how pages are stored once."""

from .errors import (
    DataMovedError,
    DumpError,
    HoldError,
    HostImageError,
    ImageMissingError,
    NoRoomError,
    RefusedError,
    RestoreError,
    TreeGoneError,
)
from .facts import Allowed, Facts
from .guard import Verdict, judge
from .hold import Hold
from .ingest import HOST_IMAGE, IngestReport, ingest
from .keeper_link import KeeperLostError
from .rebuild import image_bytes, rebuild
from .restore import Restored, restore
from .scan import scan

__all__ = [
    "HOST_IMAGE",
    "Allowed",
    "DataMovedError",
    "DumpError",
    "Facts",
    "Hold",
    "HoldError",
    "HostImageError",
    "ImageMissingError",
    "IngestReport",
    "KeeperLostError",
    "NoRoomError",
    "RefusedError",
    "RestoreError",
    "Restored",
    "TreeGoneError",
    "Verdict",
    "image_bytes",
    "ingest",
    "judge",
    "rebuild",
    "restore",
    "scan",
]
