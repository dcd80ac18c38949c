/* Functions of the rank that its streams come to (layout.h).  The caller is a thread of the driver's, in stream order; several
 * streams may come to one at once, and the rank calls one after the other. */
#include "session.h"

void sg_host_function_call(sg_session *s, const struct sg_host_function *function) {
    struct sg_session_page *page = s->page;
    pthread_mutex_lock(&s->host_lock);
    uint32_t number = ++s->host_asked, called;
    while (s->host_through != number - 1 && !s->host_quit) pthread_cond_wait(&s->host_changed, &s->host_lock);
    int quit = s->host_quit;
    pthread_mutex_unlock(&s->host_lock);
    if (!quit) {
        page->host = *function;
        atomic_store(&page->host_offered, number);
        sg_futex_wake(&page->host_offered, 1);
    }
    while (!quit && (called = atomic_load(&page->host_called)) != number) {
        sg_futex_wait(&page->host_called, called, SG_WAIT_MS);
        pthread_mutex_lock(&s->host_lock);
        quit = s->host_quit;
        pthread_mutex_unlock(&s->host_lock);
    }
    pthread_mutex_lock(&s->host_lock);
    s->host_through = number;
    pthread_cond_broadcast(&s->host_changed);
    pthread_mutex_unlock(&s->host_lock);
}

void sg_host_functions_due(sg_session *s, int change) { atomic_fetch_add(&s->host_due, (uint32_t)change); }

int sg_host_functions_run(sg_session *s, uint64_t *through) {
    pthread_mutex_lock(&s->host_lock);
    int run = s->host_asked != s->host_through;
    *through += s->host_through;
    pthread_mutex_unlock(&s->host_lock);
    return run || atomic_load(&s->host_due) != 0;
}

void sg_host_functions_quit(sg_session *s) {
    pthread_mutex_lock(&s->host_lock);
    s->host_quit = 1;
    pthread_cond_broadcast(&s->host_changed);
    pthread_mutex_unlock(&s->host_lock);
    sg_futex_wake(&s->page->host_called, INT_MAX);
}
