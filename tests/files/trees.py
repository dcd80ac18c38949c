"""Directories as tests compare them, and the way of changes through a store into another directory."""

from __future__ import annotations

import os
import stat
import subprocess
from collections.abc import Iterable, Mapping
from pathlib import Path

from singularity_core.checkpoint import Manifest, Store
from singularity_core.checkpoint.file_log import settle
from singularity_core.checkpoint.file_restore import STAGE_PREFIX
from singularity_core.checkpoint.files import (
    Change,
    Excludes,
    FileDigests,
    FileList,
    JobRoot,
    OpenFile,
    PathMapping,
    capture_files,
    restore_files,
)

Seen = dict[str, tuple[object, ...]]


def snapshot(top: Path, *, times: bool = True) -> Seen:
    """All below `top` by its path: what it is, and what a program can see of it.  Times of directories do not
    count: they change with what is in them."""
    first_names: dict[int, str] = {}
    seen: Seen = {}
    for folder, folders, files in os.walk(top):
        folders[:] = [each for each in folders if not each.startswith(STAGE_PREFIX.decode())]
        for name in sorted([*folders, *files]):
            path = os.path.join(folder, name)
            found = os.lstat(path)
            relative = os.path.relpath(path, top)
            first = first_names.setdefault(found.st_ino, relative)
            kind = stat.S_IFMT(found.st_mode)
            contents: object = None
            if stat.S_ISREG(found.st_mode):
                contents = (Path(path).read_bytes(), found.st_blocks == 0)
            elif stat.S_ISLNK(found.st_mode):
                contents = os.readlink(path)
            time = found.st_mtime_ns if times and not stat.S_ISDIR(found.st_mode) else 0
            xattrs = [(each, os.getxattr(path, each, follow_symlinks=False)) for each in _xattrs(path)]
            seen[relative] = (
                kind,
                stat.S_IMODE(found.st_mode),
                found.st_uid,
                found.st_gid,
                time,
                contents,
                xattrs,
                None if first == relative else first,
            )
    return seen


def _xattrs(path: str) -> list[str]:
    return sorted(name for name in os.listxattr(path, follow_symlinks=False) if name.startswith("user."))


def change_times(top: Path) -> dict[str, tuple[int, int]]:
    """Which file is behind each name, and when something about it was set, whether it differs or not."""
    found = {}
    for folder, folders, files in os.walk(top):
        for name in [*folders, *files]:
            path = os.path.join(folder, name)
            status = os.lstat(path)
            if not stat.S_ISDIR(status.st_mode):
                found[os.path.relpath(path, top)] = (status.st_ino, status.st_ctime_ns)
    return found


def differing(before: Mapping[str, object], after: Mapping[str, object]) -> set[str]:
    """The paths of which there is one, or that are not alike."""
    return {path for path in {*before, *after} if before.get(path) != after.get(path)}


def copy_tree(source: Path, target: Path) -> Path:
    """A copy with all attributes, hard links and holes."""
    subprocess.run(["cp", "-a", "--sparse=always", str(source), str(target)], check=True, timeout=60)
    return target


def covered(changes: Mapping[str, Change], top: Path) -> set[str]:
    """All paths below `top`, relative to it, that these changes carry or delete."""
    within = {path: change for path, change in changes.items() if path.startswith(f"{top}/")}
    settled = settle(within, Excludes(), JobRoot().look)
    paths = {*settled.present, *settled.whole, *settled.deleted}
    for whole in settled.whole:
        for folder, folders, files in os.walk(whole):
            paths |= {os.path.join(folder, name) for name in [*folders, *files]}
    return {os.path.relpath(path, top) for path in paths}


def with_all_below(paths: Iterable[str], known: Iterable[str]) -> set[str]:
    """`paths`, and those of `known` that lie below one of them."""
    paths = set(paths)
    return paths | {each for each in known if any(each.startswith(f"{path}/") for path in paths)}


def store_changes(
    store: Store,
    changes: Mapping[str, Change],
    opened: Mapping[str, OpenFile] | None = None,
    excludes: Excludes | None = None,
) -> tuple[Manifest, FileList]:
    """A checkpoint with nothing but files."""
    with store.write("job") as writer:
        captured = capture_files(writer, changes, opened or {}, excludes=excludes)
        files = captured.finish(writer, FileDigests())
        return writer.commit(), files


def carry(store: Store, changes: Mapping[str, Change], source: Path, target: Path, workspace: Path) -> None:
    """Take what changed below `source` to `target`, by way of a checkpoint."""
    within = {path: change for path, change in changes.items() if path.startswith(f"{source}/")}
    manifest, _ = store_changes(store, within)
    with store.read(manifest.checkpoint) as reader:
        mapping = PathMapping([(str(source), str(target))])
        restore_files(reader, workspace=workspace, mapping=mapping)
