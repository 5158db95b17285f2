/* SPDX-License-Identifier: Apache-2.0
 *
 * test_rq_data.c - calls inside RQ jobs: read without running anything, answered as RQ's serializers would.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <zlib.h>

#include "intake/rq_data.h"
#include "intake/rq_pickle.h"
#include "unit.h"

/* pickle.dumps(("src.worker.execute_run", None, ("run-1",), {}), 5) */
#define GOLDEN                                                                                                         \
    "\x80\x05\x95\x2a\x00\x00\x00\x00\x00\x00\x00\x28\x8c\x16src.worker.execute_run\x94\x4e\x8c\x05run-1\x94\x85"      \
    "\x94}\x94t\x94."

static stint_code read_bytes(struct st_slice data, struct st_rq_call *call, stint_error *err)
{
    memset(err, 0, sizeof(*err));
    return st_rq_data_read(data, "execute_run", call, err);
}

static void assert_run(struct st_slice data, const char *run_id)
{
    struct st_rq_call call;
    stint_error err;

    if (read_bytes(data, &call, &err) != STINT_OK)
        fail_msg("%s", err.message);
    assert_string_equal(call.run_id, run_id);
}

static void assert_refused(struct st_slice data, const char *why)
{
    struct st_rq_call call;
    stint_error err;

    assert_int_equal(read_bytes(data, &call, &err), STINT_EINVAL);
    if (!strstr(err.message, why))
        fail_msg("'%s' is not in '%s'", why, err.message);
}

static struct st_slice deflated(struct st_slice text, unsigned char *out, size_t size)
{
    uLongf n = size;

    assert_int_equal(compress(out, &n, (const Bytef *)text.p, text.len), Z_OK);
    return ST_SLICE((const char *)out, n);
}

static void the_golden_pickle_gives_function_and_run(void **state)
{
    unsigned char z[256];
    struct st_rq_call call;
    stint_error err;

    (void)state;
    assert_int_equal(read_bytes(LIT(GOLDEN), &call, &err), STINT_OK);
    assert_string_equal(call.function, "src.worker.execute_run");
    assert_string_equal(call.run_id, "run-1");
    assert_int_equal(call.format, ST_RQ_PICKLE);
    assert_run(deflated(LIT(GOLDEN), z, sizeof(z)), "run-1");
}

static void the_json_serializers_array_is_read_too(void **state)
{
    const char *json = "[\"a.execute_run\", null, [\"run-\\u0032\", 5], {}]";
    unsigned char z[256];
    struct st_rq_call call;
    stint_error err;

    (void)state;
    assert_run(st_slice_cstr(json), "run-2");
    assert_int_equal(read_bytes(deflated(st_slice_cstr(json), z, sizeof(z)), &call, &err), STINT_OK);
    assert_int_equal(call.format, ST_RQ_JSON);
    assert_run(LIT("[\"execute_run\", null, [], {\"run_id\": \"r\"}]"), "r");
    assert_run(LIT("[\"execute_run\", null, [42], {}]"), "42");
}

static void a_uuid_is_its_text(void **state)
{
    (void)state;
    assert_run(LIT("\x80\x05\x95\x48\x00\x00\x00\x00\x00\x00\x00(\x8c\x0d"
                   "a.execute_run\x94N\x8c\x04uuid\x94\x8c\x04UUID\x94\x93\x94)\x81\x94}\x94\x8c\x03int\x94\x8a\x10"
                   "xV4\x12xV4\x12xV4\x12xV4\x12sb\x85\x94}\x94t\x94."),
               "12345678-1234-5678-1234-567812345678");
    /* protocol 2: a global by line; the first half of the number is zero */
    assert_run(LIT("\x80\x02(X\x0b\x00\x00\x00"
                   "execute_runq\x00Ncuuid\nUUID\nq\x01)\x81q\x02}q\x03X\x03\x00\x00\x00intq\x04K\x07sb\x85q\x05}"
                   "q\x06tq\x07."),
               "00000000-0000-0000-0000-000000000007");
}

static void the_run_may_be_a_keyword_or_a_number(void **state)
{
    (void)state;
    assert_run(LIT("\x80\x04(\x8c\x0b"
                   "execute_runN)}\x8c\x06run_id\x8c\x01xst."),
               "x");
    assert_run(LIT("\x80\x04(\x8c\x0b"
                   "execute_runNJ\xff\xff\xff\xff\x85}t."),
               "-1");
    assert_run(LIT("\x80\x04(\x8c\x0b"
                   "execute_runN\x8a\x02\x00\x80\x85}t."),
               "-32768");
}

static void the_function_is_matched_by_its_last_part(void **state)
{
    (void)state;
    assert_refused(LIT("[\"src.my_execute_run\", null, [\"r\"], {}]"), "takes calls of execute_run only");
    assert_refused(LIT("[\"os.system\", null, [\"r\"], {}]"), "not of os.system");
    assert_refused(LIT("[\"a\\u0000.execute_run\", null, [\"r\"], {}]"), "control characters");
    assert_run(LIT("[\"execute_run\", null, [\"r\"], {}]"), "r");
}

/* What cPickle would run. */
static void anything_that_runs_is_refused_by_name(void **state)
{
    (void)state;
    assert_refused(LIT("\x80\x04\x8c\x05posix\x8c\x06system\x93\x8c\x02id\x85R."), "wants posix.system");
    assert_refused(LIT("\x80\x02"
                       "cos\nsystem\n(S'id'\ntR."),
                   "wants os.system");
    assert_refused(LIT("\x80\x04\x8c\x08"
                       "builtins\x8c\x04"
                       "eval\x93."),
                   "builtins.eval");
    assert_refused(LIT("\x80\x04)R."), "instruction 0x52");
    assert_refused(LIT("\x80\x04"
                       "cuuid\nUUID\n)}\x92."),
                   "instruction 0x92");
    assert_refused(LIT("\x80\x02"
                       "cuuid\nUUID\nX\x01\x00\x00\x00"
                       "a\x85\x81."),
                   "not a UUID");
    assert_refused(LIT("\x80\x04"
                       "cuuid\nUUID\n)\x81}(X\x01\x00\x00\x00"
                       "aq\x01h\x01h\x01h\x01h\x01h\x01h\x01h\x01h\x01h\x01h\x01h\x01h\x01h\x01h\x01h\x01"
                       "X\x03\x00\x00\x00intK\x07ub."),
                   "a UUID without a number"); /* a long state that is used again and again takes for ever */
    assert_refused(LIT("cos\nsystem\n(S'id'\ntR."), "neither a pickle nor JSON");
}

static void broken_and_endless_input_is_refused(void **state)
{
    char *many = malloc(200000);
    unsigned char z[4096];
    char *zeros = calloc(1, 2 << 20);

    (void)state;
    assert_refused(ST_SLICE("", 0), "there is none");
    assert_refused(LIT("\x80"), "ends too soon");
    assert_refused(LIT("\x80\x05."), "one value");
    assert_refused(LIT("\x80\x05X\xff\xff\xff\xff"), "ends too soon");
    assert_refused(LIT("\x80\x05\x8d\xff\xff\xff\xff\xff\xff\xff\xff"), "ends too soon");
    assert_refused(LIT("\x80\x05h\x07."), "not there");
    assert_refused(LIT("\x80\x05NNa."), "not a container");
    assert_refused(LIT("\x80\x05t."), "not begun");
    assert_refused(LIT("\x80\x05"
                       "Nr\xff\xff\xff\xff."),
                   "too large");
    memset(many, 'N', 200000);
    many[0] = '\x80';
    many[1] = '\x05';
    assert_refused(ST_SLICE(many, 200000), "too large");
    assert_refused(deflated(ST_SLICE(zeros, 2 << 20), z, sizeof(z)), "larger than 1 MiB");
    free(many);
    free(zeros);
}

/* A list that contains itself, as the run id and as an argument that nobody looks at. */
static void a_circle_does_no_harm(void **state)
{
    (void)state;
    assert_refused(LIT("\x80\x04(\x8c\x0b"
                       "execute_runN]\x94h\x00"
                       "a\x85}t."),
                   "neither a text nor a UUID");
    assert_run(LIT("\x80\x04(\x8c\x0b"
                   "execute_runN\x8c\x01r]\x94h\x00"
                   "a\x86}t."),
               "r");
}

static void run_ids_have_the_limits_of_job_ids(void **state)
{
    char json[400];

    (void)state;
    snprintf(json, sizeof(json), "[\"execute_run\", null, [\"%0129d\"], {}]", 0);
    assert_refused(st_slice_cstr(json), "the run id");
    assert_refused(LIT("[\"execute_run\", null, [\"\"], {}]"), "run id");
    assert_refused(LIT("[\"execute_run\", null, [\"a\\u0000b\"], {}]"), "run id");
    assert_refused(LIT("[\"execute_run\", null, [], {}]"), "has no run id");
    assert_refused(LIT("[\"execute_run\", null, [null], {}]"), "not a text");
}

static void assert_pickled(const char *json, struct st_slice expected)
{
    struct st_buf b;

    st_buf_init(&b, 1 << 20);
    st_pickle_write(&b, st_slice_cstr(json));
    assert_int_equal(b.len, expected.len);
    assert_memory_equal(b.p, expected.p, b.len);
    st_buf_clear(&b);
}

static void json_values_become_pickles(void **state)
{
    (void)state;
    assert_pickled(NULL, LIT("\x80\x04N."));
    assert_pickled(" null ", LIT("\x80\x04N."));
    assert_pickled("true", LIT("\x80\x04\x88."));
    assert_pickled("-2", LIT("\x80\x04J\xfe\xff\xff\xff."));
    assert_pickled("4294967296", LIT("\x80\x04\x8a\x08\x00\x00\x00\x00\x01\x00\x00\x00."));
    assert_pickled("123456789012345678901234567890", LIT("\x80\x04L123456789012345678901234567890L\n."));
    assert_pickled("1.5", LIT("\x80\x04G\x3f\xf8\x00\x00\x00\x00\x00\x00."));
    assert_pickled("\"a\\u00e9\"", LIT("\x80\x04X\x03\x00\x00\x00"
                                       "a\xc3\xa9."));
    assert_pickled("[]", LIT("\x80\x04]."));
    assert_pickled("{\"a\": [1]}", LIT("\x80\x04}(X\x01\x00\x00\x00"
                                       "a](J\x01\x00\x00\x00"
                                       "eu."));
}

static void results_are_base64_of_the_jobs_own_serializer(void **state)
{
    struct st_buf b;

    (void)state;
    st_buf_init(&b, 1 << 20);
    assert_true(st_rq_data_result(ST_RQ_PICKLE, LIT("true"), &b));
    assert_string_equal(b.p, "gASILg==");
    st_buf_reset(&b);
    assert_true(st_rq_data_result(ST_RQ_JSON, LIT("true"), &b));
    assert_string_equal(b.p, "dHJ1ZQ==");
    st_buf_reset(&b);
    assert_true(st_rq_data_result(ST_RQ_JSON, LIT("a \"b"), &b)); /* text is a string */
    assert_string_equal(b.p, "ImEgXCJiIg==");
    st_buf_reset(&b);
    assert_true(st_rq_data_result(ST_RQ_PICKLE, LIT("ab"), &b));
    assert_string_equal(b.p, "gARYAgAAAGFiLg==");
    st_buf_reset(&b);
    assert_true(st_rq_data_result(ST_RQ_PICKLE, ST_SLICE("", 0), &b)); /* nothing is None */
    assert_string_equal(b.p, "gAROLg==");
    st_buf_reset(&b);
    assert_false(st_rq_data_result(ST_RQ_JSON, LIT("\xff\xfe"), &b));
    st_buf_clear(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_golden_pickle_gives_function_and_run),
        cmocka_unit_test(the_json_serializers_array_is_read_too),
        cmocka_unit_test(a_uuid_is_its_text),
        cmocka_unit_test(the_run_may_be_a_keyword_or_a_number),
        cmocka_unit_test(the_function_is_matched_by_its_last_part),
        cmocka_unit_test(anything_that_runs_is_refused_by_name),
        cmocka_unit_test(broken_and_endless_input_is_refused),
        cmocka_unit_test(a_circle_does_no_harm),
        cmocka_unit_test(run_ids_have_the_limits_of_job_ids),
        cmocka_unit_test(json_values_become_pickles),
        cmocka_unit_test(results_are_base64_of_the_jobs_own_serializer),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
