/* SPDX-License-Identifier: Apache-2.0
 *
 * pool.c - run attempts inside this process, one thread per slot.
 *
 *     todo --pop--> handler --push--> done --take--> the loop
 *
 * A thread that takes an item while more are waiting wakes one more thread, unless handlers have been so short that
 * waking costs more than running: then one or two threads drain the queue.  Should a long one come after short ones, the
 * nudge wakes another thread a few milliseconds later.
 *
 * Invariants:
 *   (1) an item is in exactly one place: todo, a thread, done, or the caller's hands;
 *   (2) wake is sent when done goes from empty to not empty.
 *
 * Threads: push and take come from the loop; the rest runs on the pool's own threads.
 */
#include "execute/pool.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#define SHORT_US 20.0
#define SMOOTH   0.1

struct list {
    struct st_pool_item *first, **end;
};

struct st_pool {
    pthread_mutex_t mutex;
    pthread_cond_t todo_cond;
    struct list todo, done;
    pthread_t *threads;
    int n_threads, max_threads, idle;
    double run_us; /* what a handler takes, smoothed */
    bool stop;
    uv_async_t *wake;
};

static void list_init(struct list *l)
{
    l->first = NULL;
    l->end = &l->first;
}

static void list_push(struct list *l, struct st_pool_item *first, struct st_pool_item *last)
{
    last->next = NULL;
    *l->end = first;
    l->end = &last->next;
}

static struct st_pool_item *list_pop(struct list *l)
{
    struct st_pool_item *it = l->first;

    l->first = it->next;
    if (!l->first)
        l->end = &l->first;
    it->next = NULL;
    return it;
}

static void *pool_thread(void *arg);

/* Under the mutex: get one more thread going, an idle one if there is one. */
static void pool_rouse(struct st_pool *p)
{
    if (p->idle > 0)
        pthread_cond_signal(&p->todo_cond);
    else if (p->n_threads < p->max_threads && pthread_create(&p->threads[p->n_threads], NULL, pool_thread, p) == 0)
        p->n_threads++;
}

/* Is another thread worth waking for what waits? */
static bool worth_waking(const struct st_pool *p)
{
    return p->run_us > SHORT_US || p->n_threads == p->idle;
}

static void item_run(struct st_pool_item *it)
{
    enum st_abort why;

    it->ran = (struct st_ran)ST_RAN_INIT;
    it->ran.ok = true;
    if (!atomic_load(&it->abort))
        it->fn(it->arg, it);
    why = (enum st_abort)atomic_load(&it->abort);
    it->ran.aborted = it->firm && !st_abort_lost(why) ? ST_ABORT_NOT : why;
}

static void note_duration(struct st_pool *p, int64_t us)
{
    p->run_us += SMOOTH * ((double)us - p->run_us);
}

static void *pool_thread(void *arg)
{
    struct st_pool *p = arg;

    pthread_mutex_lock(&p->mutex);
    for (;;) {
        struct st_pool_item *it;
        int64_t start;
        bool was_empty;

        while (!p->todo.first && !p->stop) {
            p->idle++;
            pthread_cond_wait(&p->todo_cond, &p->mutex);
            p->idle--;
        }
        if (!p->todo.first)
            break;
        it = list_pop(&p->todo);
        start = st_clock_boot_us();
        atomic_store(&it->started_us, start);
        if (p->todo.first && worth_waking(p))
            pool_rouse(p);
        pthread_mutex_unlock(&p->mutex);
        item_run(it);
        pthread_mutex_lock(&p->mutex);
        note_duration(p, st_clock_boot_us() - start);
        was_empty = !p->done.first;
        list_push(&p->done, it, it);
        if (was_empty)
            uv_async_send(p->wake);
    }
    pthread_mutex_unlock(&p->mutex);
    return NULL;
}

stint_code st_pool_new(int n, uv_async_t *wake, struct st_pool **out, stint_error *err)
{
    struct st_pool *p = calloc(1, sizeof(*p));

    *out = NULL;
    if (p)
        p->threads = calloc((size_t)n, sizeof(*p->threads));
    if (!p || !p->threads) {
        free(p);
        return st_fail(err, STINT_ENOMEM, "no memory for %d handler threads", n);
    }
    p->max_threads = n;
    p->wake = wake;
    list_init(&p->todo);
    list_init(&p->done);
    pthread_mutex_init(&p->mutex, NULL);
    pthread_cond_init(&p->todo_cond, NULL);
    *out = p;
    return STINT_OK;
}

void st_pool_push(struct st_pool *p, struct st_pool_item *first, struct st_pool_item *last, size_t n)
{
    if (n == 0)
        return;
    pthread_mutex_lock(&p->mutex);
    list_push(&p->todo, first, last);
    if (worth_waking(p))
        pool_rouse(p);
    pthread_mutex_unlock(&p->mutex);
}

void st_pool_nudge(struct st_pool *p)
{
    pthread_mutex_lock(&p->mutex);
    if (p->todo.first)
        pool_rouse(p);
    pthread_mutex_unlock(&p->mutex);
}

struct st_pool_item *st_pool_withdraw(struct st_pool *p)
{
    struct st_pool_item *first;

    pthread_mutex_lock(&p->mutex);
    first = p->todo.first;
    list_init(&p->todo);
    pthread_mutex_unlock(&p->mutex);
    return first;
}

struct st_pool_item *st_pool_take(struct st_pool *p)
{
    struct st_pool_item *first;

    pthread_mutex_lock(&p->mutex);
    first = p->done.first;
    list_init(&p->done);
    pthread_mutex_unlock(&p->mutex);
    return first;
}

void st_pool_free(struct st_pool *p)
{
    if (!p)
        return;
    pthread_mutex_lock(&p->mutex);
    p->stop = true;
    pthread_cond_broadcast(&p->todo_cond);
    pthread_mutex_unlock(&p->mutex);
    for (int i = 0; i < p->n_threads; i++)
        pthread_join(p->threads[i], NULL);
    pthread_cond_destroy(&p->todo_cond);
    pthread_mutex_destroy(&p->mutex);
    free(p->threads);
    free(p);
}

/* ---- one item ---------------------------------------------------------------------------- */

void st_item_init(struct st_pool_item *it, st_handler_fn fn, void *arg, const struct st_job *job)
{
    it->next = NULL;
    it->fn = fn;
    it->arg = arg;
    it->job = job;
    it->firm = false;
    atomic_store_explicit(&it->abort, ST_ABORT_NOT, memory_order_relaxed);
    atomic_store_explicit(&it->abort_fd, -1, memory_order_relaxed);
    atomic_store_explicit(&it->settling, false, memory_order_relaxed);
    atomic_store_explicit(&it->progress, NULL, memory_order_relaxed);
    atomic_store_explicit(&it->started_us, 0, memory_order_relaxed);
}

void st_item_clear(struct st_pool_item *it)
{
    int fd = atomic_load_explicit(&it->abort_fd, memory_order_relaxed);

    if (fd >= 0) {
        atomic_store(&it->abort_fd, -1);
        close(fd);
    }
    free(st_item_progress_take(it));
}

static void fd_raise(int fd)
{
    ssize_t n = write(fd, &(uint64_t){1}, sizeof(uint64_t));

    (void)n; /* full means readable already */
}

/* The flag before the descriptor here, the descriptor before the flag below: one of the two sees the other. */
void st_item_abort(struct st_pool_item *it, enum st_abort why)
{
    int fd;

    atomic_store(&it->abort, (int)why);
    fd = atomic_load(&it->abort_fd);
    if (fd >= 0)
        fd_raise(fd);
}

int st_item_abort_fd(struct st_pool_item *it)
{
    int fd = atomic_load(&it->abort_fd), none = -1;

    if (fd >= 0)
        return fd;
    fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (fd < 0)
        return -1;
    if (!atomic_compare_exchange_strong(&it->abort_fd, &none, fd)) {
        close(fd); /* another thread of the handler's was faster */
        fd = none;
    }
    if (atomic_load(&it->abort))
        fd_raise(fd);
    return fd;
}

bool st_item_progress(struct st_pool_item *it, struct st_slice json)
{
    char *text = strndup(json.p, json.len);

    if (text)
        free(atomic_exchange(&it->progress, text));
    return text != NULL;
}

char *st_item_progress_take(struct st_pool_item *it)
{
    return atomic_load_explicit(&it->progress, memory_order_relaxed) ? atomic_exchange(&it->progress, NULL) : NULL;
}

void st_item_progress_back(struct st_pool_item *it, char *json)
{
    char *none = NULL;

    if (!atomic_compare_exchange_strong(&it->progress, &none, json))
        free(json);
}
