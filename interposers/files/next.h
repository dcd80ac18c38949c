/* The functions behind ours: libc's, or those of another library that is preloaded as well. */
#ifndef SG_FILES_NEXT_H
#define SG_FILES_NEXT_H

/* All that we wrap.  Which functions of libc that change files are not here, and why, says
 * tests/files/test_surface.py. */
#define SG_WRAPPED(X) \
    X(open) X(open64) X(openat) X(openat64) X(creat) X(creat64) \
    X(__open) X(__open64) X(__open_2) X(__open64_2) X(__openat_2) X(__openat64_2) \
    X(fopen) X(fopen64) X(freopen) X(freopen64) X(open_by_handle_at) \
    X(rename) X(renameat) X(renameat2) X(unlink) X(unlinkat) X(remove) X(rmdir) \
    X(link) X(linkat) X(symlink) X(symlinkat) X(mkdir) X(mkdirat) \
    X(mknod) X(mknodat) X(__xmknod) X(__xmknodat) X(mkfifo) X(mkfifoat) X(bind) X(chroot) \
    X(truncate) X(truncate64) X(ftruncate) X(ftruncate64) \
    X(chmod) X(fchmod) X(fchmodat) X(lchmod) X(chown) X(fchown) X(fchownat) X(lchown) \
    X(utime) X(utimes) X(lutimes) X(futimes) X(futimesat) X(utimensat) X(futimens) \
    X(setxattr) X(lsetxattr) X(fsetxattr) X(removexattr) X(lremovexattr) X(fremovexattr) \
    X(mkstemp) X(mkstemp64) X(mkstemps) X(mkstemps64) X(mkostemp) X(mkostemp64) X(mkostemps) X(mkostemps64) X(mkdtemp) \
    X(posix_spawn_file_actions_init) X(posix_spawn_file_actions_addopen) \
    X(posix_spawn_file_actions_addchdir_np) X(posix_spawn_file_actions_addfchdir_np)

enum sg_wrapped {
#define SG_NUMBER(name) SG_NEXT_##name,
    SG_WRAPPED(SG_NUMBER)
#undef SG_NUMBER
    SG_WRAPPED_COUNT
};

/* Never NULL: what libc does not have fails with ENOSYS. */
void *sg_next(enum sg_wrapped which);

#define SG_NEXT(name) ((__typeof__(&name))sg_next(SG_NEXT_##name))

#endif
