/* A proxy's sessions go on in another proxy, on the same doors.
 *
 * The one that has them writes an image of each next to its door, once the cut is reached (rest.c asks for it), and from then on
 * touches nothing that ranks see: its loop is *handed*, until the cut lets it go on after all.  The one that takes them over starts
 * handed: it opens the doors and the sessions' files, leaves both as they are, and waits.  Exactly one of the two is let go, by
 * the board that it looks at; that one says so on the doors.  The other one is killed, and not asked to clean up. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>

#include "../exchange/board.h"
#include "doorway.h"
#include "session_image.h"

#define IMAGE_MOST (1ull << 32)
#define CHANGES_NS 5000000000ull

static void path_of(const struct sg_doorway *doorway, uint32_t slot, const char *end, char path[4096]) {
    snprintf(path, 4096, "%s/%u.image%s", doorway->directory, slot, end);
}

/* ---- out -------------------------------------------------------------------------------------------------------- */
static int write_all(int fd, const uint8_t *from, uint64_t bytes) {
    while (bytes != 0) {
        ssize_t some = write(fd, from, bytes);
        if (some < 0 && errno == EINTR) continue;
        if (some <= 0) return some < 0 ? -errno : -EIO;
        from += some;
        bytes -= (uint64_t)some;
    }
    return 0;
}

/* Appears whole. */
static int write_file(const struct sg_doorway *doorway, uint32_t slot, const struct sg_out *out) {
    char draft[4096], path[4096];
    path_of(doorway, slot, ".draft", draft);
    path_of(doorway, slot, "", path);
    unlink(draft);
    int fd = open(draft, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
    if (fd < 0) return -errno;
    int error = write_all(fd, out->at, out->used);
    close(fd);
    if (error == 0 && rename(draft, path) != 0) error = -errno;
    if (error != 0) unlink(draft);
    return error;
}

static int write_session(const struct sg_doorway *doorway, uint32_t index, char why[SG_SAID]) {
    const struct sg_slot *slot = &doorway->slots[index];
    struct sg_image_owner owner = {slot->pid, slot->start, slot->session->rank, slot->session->sub,
                                   sg_claimant_number(&doorway->server->claimants, slot->pid)};
    struct sg_out out = {0};
    char said[96] = "";
    int error = sg_session_export(slot->session, &owner, &out, said);
    if (error == 0 && (error = write_file(doorway, index, &out)) != 0) snprintf(said, sizeof said, "its image cannot be written: %s", strerror(-error));
    free(out.at);
    if (error != 0) snprintf(why, SG_SAID, "rank %u: %s", owner.rank, said);
    return error;
}

/* Stops the loop between two of its turns, once no session comes or goes: those that do need nobody's help.  -EBUSY: one takes too
 * long. */
static int stop_loop(sg_server *server) {
    uint64_t until = sg_now_ns() + CHANGES_NS;
    for (;;) {
        int busy = 0;
        pthread_mutex_lock(&server->loop_lock);
        for (uint32_t i = 0; i < server->doorway_count; i++) busy |= sg_doorway_changes(&server->doorways[i]);
        if (!busy) server->handed = 1;
        pthread_mutex_unlock(&server->loop_lock);
        if (!busy || sg_now_ns() > until || atomic_load(&server->stopping)) return busy ? -EBUSY : 0;
        usleep(1000);
    }
}

static void start_loop(sg_server *server) {
    pthread_mutex_lock(&server->loop_lock);
    server->handed = 0;
    pthread_mutex_unlock(&server->loop_lock);
    sg_server_poke(server);
}

int sg_server_write_sessions(sg_server *server, char why[SG_SAID]) {
    int error = stop_loop(server);
    if (error != 0) {
        snprintf(why, SG_SAID, "a session of device proxy %u comes or goes just now", server->proxy_index);
        return error;
    }
    server->base.context_set(server->context);
    for (uint32_t i = 0; i < server->doorway_count; i++)
        for (uint32_t slot = 0; error == 0 && slot < SG_DOOR_SLOTS; slot++)
            if (server->doorways[i].slots[slot].session != NULL) error = write_session(&server->doorways[i], slot, why);
    server->base.context_set(NULL);
    if (error != 0) start_loop(server);
    return error;
}

/* ---- in --------------------------------------------------------------------------------------------------------- */
static uint8_t *read_file(const struct sg_doorway *doorway, uint32_t slot, uint64_t *bytes, char why[96]) {
    char path[4096];
    struct stat status;
    path_of(doorway, slot, "", path);
    int fd = open(path, O_RDONLY | O_NOFOLLOW | O_CLOEXEC);
    uint8_t *at = NULL;
    if (fd >= 0 && fstat(fd, &status) == 0 && S_ISREG(status.st_mode) && (uint64_t)status.st_size < IMAGE_MOST) {
        *bytes = 0;
        at = malloc((size_t)status.st_size + 1);
        for (ssize_t some = 1; at != NULL && some > 0 && *bytes < (uint64_t)status.st_size; *bytes += some > 0 ? (uint64_t)some : 0)
            some = read(fd, at + *bytes, (size_t)status.st_size - *bytes);
    }
    if (at == NULL) snprintf(why, 96, "its image cannot be read: %s", strerror(errno));
    if (fd >= 0) close(fd);
    return at;
}

/* Who was restored has another number out here, and began anew. */
static int seat_session(struct sg_doorway *doorway, uint32_t slot, sg_session *session, const struct sg_image_owner *owner) {
    struct sg_claimant claimant = {owner->pid, owner->start, -1};
    if (doorway->server->restored) {
        errno = ESRCH;
        if (sg_claimant_find(&doorway->server->claimants, owner->pid_inside, 0, &claimant) != 0) return -1;
    } else {
        claimant.pidfd = (int)syscall(SYS_pidfd_open, owner->pid, 0);
    }
    return claimant.pidfd < 0 ? -1 : sg_doorway_seat(doorway, slot, session, &claimant);
}

static int resume_session(struct sg_doorway *doorway, uint32_t slot, char why[256]) {
    char said[96] = "";
    uint64_t bytes = 0;
    struct sg_image_owner owner = {0};
    uint8_t *image = read_file(doorway, slot, &bytes, said);
    sg_session *session = image == NULL ? NULL : sg_session_resume(doorway, slot, image, bytes, said);
    if (session != NULL && (sg_image_owner_of(image, bytes, &owner) != 0 || seat_session(doorway, slot, session, &owner) != 0))
        snprintf(said, sizeof said, "its process %u cannot be watched: %s", owner.pid, strerror(errno));
    free(image);
    if (said[0] == 0) return 0;
    snprintf(why, 256, "the session in %.120s/%u cannot go on here: %s", doorway->directory, slot, said);
    return -1;
}

int sg_server_resume(sg_server *server, char why[256]) {
    int error = 0;
    pthread_mutex_lock(&server->loop_lock); /* the thread that will let them go (rest.c) reads what is made here */
    server->base.context_set(server->context);
    for (uint32_t i = 0; i < server->doorway_count; i++)
        for (uint32_t slot = 0; error == 0 && slot < SG_DOOR_SLOTS; slot++)
            if (sg_doorway_is_taken(&server->doorways[i], slot)) error = resume_session(&server->doorways[i], slot, why);
    server->base.context_set(NULL);
    pthread_mutex_unlock(&server->loop_lock);
    return error;
}

/* ---- which of the two goes on ------------------------------------------------------------------------------------- */
void sg_server_goes_on(sg_server *server) {
    pthread_mutex_lock(&server->loop_lock);
    int handed = server->handed;
    server->resumes = 0;
    if (handed)
        for (uint32_t i = 0; i < server->doorway_count; i++) sg_doorway_take_over(&server->doorways[i]);
    pthread_mutex_unlock(&server->loop_lock);
    if (handed) start_loop(server);
}
