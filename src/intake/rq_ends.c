/* SPDX-License-Identifier: Apache-2.0
 *
 * rq_ends.c - tickets: from an attempt that is over to what RQ is told.
 *
 *     succeeded            finished, with the result
 *     failed for good      failed, with the error
 *     cancelled            stopped
 *     to be tried again    scheduled for then: the message comes again, and with it the next attempt
 *     given back           back to the head of its queue, or scheduled if it cannot be run here for a while
 *     lost                 scheduled for soon: by then the store knows what became of the run
 *
 * So RQ never says `finished` of a run that has not ended, and never `failed` of one that will be tried again.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "intake/rq_int.h"

#define BATCH_BYTES (4u << 20)
#define RECHECK_US  (5 * ST_SEC)

/* ---- tickets, any thread ------------------------------------------------------------------------------ */

void st_rq_ticket_free(struct ticket *t)
{
    if (!t)
        return;
    free(t->id);
    free(t->text);
    free(t);
}

static void keep_text(struct ticket *t, char *text, size_t len)
{
    free(t->text);
    t->text = text;
    t->text_len = text ? len : 0;
}

static void keep_message(struct ticket *t, const struct st_finish *f)
{
    const char *kind = f->kind ? st_kind_name(f->kind) : "failed";
    char *text = NULL;
    int n = asprintf(&text, "%s: %.*s\n", kind, (int)f->message.len, f->message.p ? f->message.p : "");

    if (n >= 0)
        keep_text(t, text, (size_t)n);
}

static void decide(struct ticket *t, struct st_done *d, const struct st_finish *f)
{
    const int64_t now = st_clock_real_us();

    t->how = ST_RQ_SCHEDULE;
    t->at_us = now + RECHECK_US;
    if (!f || f->verdict != STINT_OK)
        return;
    if (f->state == ST_SUCCEEDED) {
        t->how = ST_RQ_FINISHED;
        keep_text(t, d->ran.result, d->ran.result_len); /* no copy: nobody else wants it any more */
        d->ran.result = NULL;
        d->ran.result_len = 0;
    } else if (f->state == ST_FAILED || f->state == ST_CANCELLED) {
        t->how = f->state == ST_FAILED ? ST_RQ_FAILED : ST_RQ_STOPPED;
        keep_message(t, f);
    } else if (f->delay_us > 0 || f->outcome == ST_OUT_RETRY) {
        t->at_us = now + f->delay_us;
        t->failed = f->outcome == ST_OUT_RETRY;
    } else if (d->put_off) {
        t->at_us = now + ST_RQ_ELSEWHERE_US;
    } else {
        t->how = ST_RQ_REQUEUE;
    }
}

/* Under the mutex. */
static void rouse(struct st_intake *x)
{
    if (!x->asleep)
        return;
    x->asleep = false;
    pthread_cond_signal(&x->cond);
    if (x->ear)
        st_redis_ear_interrupt(x->ear);
}

static void ticket_over(struct st_ticket *base, struct st_done *d, const struct st_finish *f)
{
    struct ticket *t = (struct ticket *)base;
    struct st_intake *x = t->x;

    decide(t, d, f);
    pthread_mutex_lock(&x->mutex);
    *(t->prev ? &t->prev->next : &x->open) = t->next;
    if (t->next)
        t->next->prev = t->prev;
    x->n_open--;
    t->next = NULL;
    *x->ended_end = t;
    x->ended_end = &t->next;
    rouse(x);
    pthread_mutex_unlock(&x->mutex);
}

/* ---- the thread's side ---------------------------------------------------------------------------------- */

struct ticket *st_rq_ticket_new(struct st_intake *x, const struct st_rq_message *m, const struct st_rq_call *call)
{
    struct ticket *t = calloc(1, sizeof(*t));
    unsigned char random[16];

    if (!t || !(t->id = strdup(m->id))) {
        free(t);
        return NULL;
    }
    t->base.over = ticket_over;
    t->x = x;
    t->queue = m->queue;
    t->format = call->format;
    t->started_us = st_clock_real_us();
    snprintf(t->run_id, sizeof(t->run_id), "%s", call->run_id);
    st_random(random, sizeof(random));
    for (size_t i = 0; i < sizeof(random); i++)
        snprintf(t->execution + 2 * i, 3, "%02x", random[i]);
    return t;
}

static void add_end(struct st_intake *x, const struct st_rq_end *end, enum st_rq_format format, const char *text,
                    size_t len)
{
    struct st_rq_end e = *end;
    struct st_buf b;

    st_buf_init(&b, 16 * (size_t)ST_RQ_RESULT_MAX); /* quoted, and in base64 */
    if (e.how == ST_RQ_FINISHED && text) {
        if (st_rq_data_result(format, ST_SLICE(text, len), &b))
            e.value = st_buf_view(&b);
    } else if (text && st_rq_data_message(ST_SLICE(text, len), &b)) {
        e.value = st_buf_view(&b);
    }
    st_rq_add_end(&x->rq, &e, st_clock_real_us());
    st_buf_clear(&b);
}

void st_rq_end_now(struct st_intake *x, const struct st_rq_message *m, enum st_rq_how how, const char *why,
                   int64_t at_us)
{
    const struct st_rq_end e = {.how = how, .id = m->id, .execution = "", .queue = m->queue, .at_us = at_us};

    add_end(x, &e, ST_RQ_PICKLE, why, why ? strlen(why) : 0);
}

/* All that is over, those that were not taken before first. */
static void gather(struct st_intake *x, size_t *n_open, char job[ST_RQ_ID_MAX + 1])
{
    struct ticket **end = &x->writing;

    while (*end)
        end = &(*end)->next;
    pthread_mutex_lock(&x->mutex);
    *end = x->ended;
    x->ended = NULL;
    x->ended_end = &x->ended;
    *n_open = x->n_open;
    job[0] = '\0';
    if (x->open)
        snprintf(job, ST_RQ_ID_MAX + 1, "%s", x->open->id);
    pthread_mutex_unlock(&x->mutex);
}

/* Sends the first of them, as many as make a batch of a fair size. */
static stint_code write_some(struct st_intake *x, const char *job, stint_error *err)
{
    struct ticket *t = x->writing;
    size_t bytes = 0, n = 0;
    stint_code rc;

    st_redis_batch_reset(&x->rq.b);
    for (; t && bytes < BATCH_BYTES; t = t->next, n++) {
        const struct st_rq_end e = {.how = t->how,
                                    .id = t->id,
                                    .execution = t->execution,
                                    .queue = t->queue,
                                    .at_us = t->at_us,
                                    .started_us = t->started_us,
                                    .failed = t->failed};

        add_end(x, &e, t->format, t->text, t->text_len);
        bytes += t->text_len + 1024;
    }
    if (!t)
        st_rq_add_state(&x->rq, job, x->suspended);
    rc = st_rq_flush_lenient(&x->rq, true, err);
    st_redis_batch_reset(&x->rq.b);
    while (rc == STINT_OK && n-- > 0) {
        t = x->writing;
        x->writing = t->next;
        st_rq_ticket_free(t);
    }
    return rc;
}

bool st_rq_ends_write(struct st_intake *x)
{
    char job[ST_RQ_ID_MAX + 1];
    size_t n_open;
    stint_error err = {0};
    stint_code rc;

    gather(x, &n_open, job);
    while (x->writing) {
        rc = write_some(x, n_open ? job : NULL, &err);
        st_rq_note(x, rc, &err);
        if (rc != STINT_OK)
            return false;
    }
    return true;
}
