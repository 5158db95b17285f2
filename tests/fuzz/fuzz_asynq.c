/* SPDX-License-Identifier: Apache-2.0
 *
 * fuzz_asynq.c - any bytes as what lies in a task's hash: asynq's message, our packed field, the list of ended attempts.
 *
 * The first byte says which.  What must hold: a message that was read and is written again reads the same; so does a packed field;
 * attempts come to an end and point inside the bytes.
 */
#include "fuzz.h"

#include <string.h>

#include "store/redis_int.h"

static bool same(struct st_slice a, struct st_slice b)
{
    return st_slice_eq(a, b);
}

static void fuzz_message(struct st_slice bytes)
{
    struct st_redis_msg m, again;
    struct st_buf b;

    if (!st_redis_msg_read(bytes, &m))
        return;
    st_buf_init(&b, (size_t)1 << 24);
    st_redis_msg_write(&m, &b);
    MUST(!b.failed);
    if (b.len) {
        MUST(st_redis_msg_read(st_buf_view(&b), &again));
        MUST(same(m.type, again.type) && same(m.payload, again.payload) && same(m.id, again.id) &&
             same(m.queue, again.queue));
        MUST(same(m.error_msg, again.error_msg) && same(m.unique_key, again.unique_key) &&
             same(m.group_key, again.group_key));
        MUST(m.retry == again.retry && m.retried == again.retried && m.timeout_s == again.timeout_s);
        MUST(m.deadline_s == again.deadline_s && m.retention_s == again.retention_s &&
             m.completed_s == again.completed_s);
        st_redis_msg_clear(&again);
    }
    st_buf_clear(&b);
    st_redis_msg_clear(&m);
}

static void fuzz_field(struct st_slice bytes)
{
    struct st_redis_task t, again;
    struct st_buf b;

    if (!st_redis_task_unpack(bytes, &t))
        return;
    st_buf_init(&b, 4096);
    st_redis_task_pack(&t, &b);
    MUST(!b.failed && st_redis_task_unpack(st_buf_view(&b), &again));
    MUST(t.flags == again.flags && t.due_us == again.due_us && t.last_fence == again.last_fence &&
         t.fence == again.fence);
    MUST(!t.fence || (t.lease_us == again.lease_us && strcmp(t.worker, again.worker) == 0));
    st_buf_clear(&b);
}

static void fuzz_runs(struct st_slice bytes)
{
    const char *end = bytes.p + bytes.len;
    struct st_redis_run r;

    while (st_redis_run_next(&bytes, &r)) {
        MUST(bytes.p <= end);
        MUST(!r.message.p || (r.message.p + r.message.len <= end));
        MUST(!r.log_tail.p || (r.log_tail.p + r.log_tail.len <= end));
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static void (*const kinds[])(struct st_slice) = {fuzz_message, fuzz_field, fuzz_runs};

    if (size)
        kinds[data[0] % 3](ST_SLICE((const char *)data + 1, size - 1));
    return 0;
}
