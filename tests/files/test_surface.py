"""Which of libc's functions that change files are wrapped, and why the others are not."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from .conftest import Built

ROOT = Path(__file__).resolve().parents[2]

CHANGES_FILES = re.compile(
    r"open|creat$|creat64|temp|tmpfile|rename|link|remove$|mkdir|rmdir|mkno|mkfifo|ch(mod|own|root)|utime|trunc|"
    r"(?<!mute)xattr|fallocate|spawn_file_actions|^bind$|ut(mp|x?line)|wtmp|^login|acct|lckpwdf|copy_file|sendfile|splice"
)

ON_AN_OPEN_FILE = "changes a file that was opened for it, and noted then"
READS = "opens for reading"
NO_FILE = "makes no file that has a name on a disk"
ACCOUNTS = "writes the system's accounts of logins, which are no job's files"
INSIDE = "inside of libc or its old names, declared in no header"
ONLY_NAMES = "only makes up a name, or takes one apart"

NOT_WRAPPED = {
    ON_AN_OPEN_FILE: "copy_file_range sendfile sendfile64 splice vmsplice fallocate fallocate64 "
    "posix_fallocate posix_fallocate64 fdopen fopencookie",
    READS: "dlopen dlmopen opendir fdopendir fts_open fts64_open catopen iconv_open readlink readlinkat "
    "__readlink_chk __readlinkat_chk getxattr lgetxattr fgetxattr listxattr llistxattr flistxattr "
    "getutline getutline_r getutxline getutmp getutmpx",
    NO_FILE: "fmemopen open_memstream open_wmemstream tmpfile tmpfile64 shm_open shm_unlink sem_open "
    "sem_unlink mq_open __mq_open_2 mq_unlink openpty posix_openpt openlog pidfd_open fsopen open_tree "
    "login_tty popen bindtextdomain bind_textdomain_codeset getlogin getlogin_r setlogin __getlogin_r_chk "
    "envz_remove",
    ACCOUNTS: "acct login logwtmp pututline pututxline updwtmp updwtmpx utmpname utmpxname lckpwdf ulckpwdf",
    INSIDE: "_IO_fdopen _IO_fopen _IO_popen _IO_proc_open _IO_file_fopen _IO_file_open _IO_link_in "
    "_IO_un_link create_module _IO_remove_marker",
    ONLY_NAMES: "mktemp tempnam posix_spawn_file_actions_addclose posix_spawn_file_actions_addclosefrom_np "
    "posix_spawn_file_actions_adddup2 posix_spawn_file_actions_addtcsetpgrp_np "
    "posix_spawn_file_actions_destroy",
}


def wrapped() -> set[str]:
    """The names in next.h."""
    source = (ROOT / "interposers" / "files" / "next.h").read_text()
    return set(re.findall(r"X\((\w+)\)", source))


def symbols(library: str | Path) -> set[str]:
    """What a library exports, without versions; without what is private to libc's own parts."""
    listed = subprocess.run(
        ["nm", "-D", "--defined-only", str(library)], capture_output=True, text=True, check=True, timeout=60
    ).stdout
    return {
        line.split()[-1].partition("@")[0]
        for line in listed.splitlines()
        if line.split()[-2] in "TWi" and "GLIBC_PRIVATE" not in line
    }


def libc() -> Path:
    """The library that this process has loaded."""
    for line in Path("/proc/self/maps").read_text().splitlines():
        if re.search(r"/libc\.so\.6$", line):
            return Path(line.split()[-1])
    pytest.skip("no glibc here")


@pytest.mark.skipif(shutil.which("nm") is None, reason="needs nm (binutils)")
def test_every_function_of_libc_is_wrapped_or_argued() -> None:
    """A new libc with a new function that changes files makes this fail until somebody thought about it."""
    argued = {name for names in NOT_WRAPPED.values() for name in names.split()}
    assert not argued & wrapped()
    candidates = {name for name in symbols(libc()) if CHANGES_FILES.search(name)}
    assert candidates - wrapped() - argued == set()


@pytest.mark.skipif(shutil.which("nm") is None, reason="needs nm (binutils)")
def test_the_library_exports_what_it_wraps_and_nothing_else(built: Built) -> None:
    """Every name in the list has its wrapper, and no other symbol gets into programs."""
    assert symbols(built.library) == wrapped()
