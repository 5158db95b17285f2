/* SPDX-License-Identifier: Apache-2.0
 *
 * fuzz_pickle.c - any bytes as the data of an RQ job.
 *
 * What must hold:
 *   - every value of a pickle that was read refers to values that are there, and every text lies inside the input;
 *   - a call that was understood has a run id that a job may have, and the function that was asked for;
 *   - what is refused is refused with a message;
 *   - a JSON document becomes a pickle that our own reader accepts, unless it has numbers that are written as text or too
 *     many values.
 */
#include "fuzz.h"

#include <string.h>

#include "base/json.h"
#include "intake/rq_data.h"
#include "intake/rq_pickle.h"

static void check_pickle(struct st_slice doc)
{
    struct st_pickle p;
    stint_error err = {0};

    if (st_pickle_read(doc, &p, &err) == STINT_OK) {
        MUST(p.root < p.n);
        for (size_t i = 0; i < p.n; i++) {
            int64_t n;

            for (size_t k = 0; k < p.v[i].n; k++)
                MUST(p.v[i].kids[k] < p.n);
            if (p.v[i].kind == ST_PICKLE_STR)
                MUST(p.v[i].bytes.p >= doc.p && p.v[i].bytes.p + p.v[i].bytes.len <= doc.p + doc.len);
            MUST(p.v[i].kind == ST_PICKLE_INT || !st_pickle_i64(&p.v[i], &n));
            MUST(p.v[i].kind != ST_PICKLE_DICT || p.v[i].n % 2 == 0);
        }
    } else {
        MUST(err.code == STINT_EINVAL && err.message[0]);
    }
    st_pickle_clear(&p);
}

static void check_written(struct st_slice json)
{
    struct st_pickle p;
    stint_error err = {0};
    struct st_buf b;

    if (!st_json_ok(json))
        return;
    st_buf_init(&b, 1 << 22);
    st_pickle_write(&b, json);
    MUST(!b.failed);
    if (b.len <= ST_PICKLE_BYTES_MAX && st_pickle_read(st_buf_view(&b), &p, &err) != STINT_OK)
        MUST(strstr(err.message, "instruction 0x4c") || strstr(err.message, "too large"));
    if (b.len <= ST_PICKLE_BYTES_MAX)
        st_pickle_clear(&p);
    st_buf_clear(&b);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct st_slice doc = ST_SLICE((const char *)data, size);
    struct st_rq_call call;
    stint_error err = {0};

    check_pickle(doc);
    check_written(doc);
    if (st_rq_data_read(doc, "f", &call, &err) == STINT_OK) {
        const size_t n = strlen(call.function);

        MUST(st_id_check(st_slice_cstr(call.run_id), NULL) == STINT_OK);
        MUST(n > 0 && (n == ST_RQ_FUNCTION_MAX || call.function[n - 1] == 'f'));
    } else {
        MUST(err.code == STINT_EINVAL && err.message[0]);
    }
    return 0;
}
