/* SPDX-License-Identifier: Apache-2.0
 *
 * rq_data.c - the call inside an RQ job: (function, instance, (args...), {kwargs}).
 *
 * Both serializers give the same four things.  Whatever is not a plain value is refused, and nothing is ever run.
 */
#include "intake/rq_data.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <zlib.h>

#include "base/json.h"
#include "intake/rq_pickle.h"

#define KEYWORD "run_id"

/* ---- zlib --------------------------------------------------------------------------------------- */

/* false: it is not zlib at all, or too much. */
static bool inflate_all(struct st_slice in, struct st_buf *out, bool *too_large)
{
    z_stream z = {.next_in = (Bytef *)in.p, .avail_in = (uInt)in.len};
    unsigned char chunk[8192];
    int rc = inflateInit(&z);

    *too_large = false;
    if (rc != Z_OK)
        return false;
    do {
        z.next_out = chunk;
        z.avail_out = sizeof(chunk);
        rc = inflate(&z, Z_NO_FLUSH);
        if (rc != Z_OK && rc != Z_STREAM_END)
            break;
        st_buf_put(out, chunk, sizeof(chunk) - z.avail_out);
    } while (rc == Z_OK && !out->failed);
    inflateEnd(&z);
    *too_large = out->failed;
    return rc == Z_STREAM_END && !out->failed;
}

bool st_rq_data_message(struct st_slice text, struct st_buf *out)
{
    uLongf n = compressBound((uLong)text.len);
    unsigned char *z = malloc(n);
    bool ok = z && compress(z, &n, (const Bytef *)(text.p ? text.p : ""), (uLong)text.len) == Z_OK;

    if (ok)
        st_buf_base64(out, ST_SLICE((const char *)z, n));
    free(z);
    return ok && !out->failed;
}

/* ---- the function and the run --------------------------------------------------------------------- */

static stint_code refuse(stint_error *err, const char *why)
{
    return st_fail(err, STINT_EINVAL, "the job's data is not a call that is understood here: %s", why);
}

/* Equal, or the last part after a dot. */
static bool is_function(struct st_slice name, const char *wanted)
{
    const size_t n = strlen(wanted);

    if (name.len < n || memcmp(name.p + name.len - n, wanted, n) != 0)
        return false;
    return name.len == n || name.p[name.len - n - 1] == '.';
}

static stint_code set_function(struct st_rq_call *out, struct st_slice name, const char *wanted, stint_error *err)
{
    const size_t n = st_utf8_cut(name.p, name.len, ST_RQ_FUNCTION_MAX);

    for (size_t i = 0; i < name.len; i++)
        if ((unsigned char)name.p[i] < ' ')
            return refuse(err, "the function's name has control characters");
    memcpy(out->function, name.p, n);
    out->function[n] = '\0';
    if (is_function(name, wanted))
        return STINT_OK;
    st_fail(err, STINT_EINVAL, "this worker takes calls of %.60s only, not of %.100s", wanted, out->function);
    return STINT_EINVAL;
}

static stint_code set_run(struct st_rq_call *out, struct st_slice id, stint_error *err)
{
    if (st_id_check(id, err)) {
        st_err_prefix(err, "the run id");
        return STINT_EINVAL;
    }
    memcpy(out->run_id, id.p, id.len);
    out->run_id[id.len] = '\0';
    return STINT_OK;
}

static stint_code no_run(stint_error *err)
{
    return refuse(err, "it has no run id, which is the first argument or the keyword argument " KEYWORD);
}

/* ---- pickle --------------------------------------------------------------------------------------- */

static void uuid_text(const unsigned char u[16], char out[ST_UUID_LEN + 1])
{
    static const char hex[] = "0123456789abcdef";
    char *p = out;

    for (size_t i = 0; i < 16; i++) {
        if (i == 4 || i == 6 || i == 8 || i == 10)
            *p++ = '-';
        *p++ = hex[u[i] >> 4];
        *p++ = hex[u[i] & 15];
    }
    *p = '\0';
}

static stint_code pickle_run(const struct st_pickle_value *v, struct st_rq_call *out, stint_error *err)
{
    char text[64];
    int64_t n;

    if (v->kind == ST_PICKLE_STR)
        return set_run(out, v->bytes, err);
    if (v->kind == ST_PICKLE_UUID)
        uuid_text(v->uuid, text);
    else if (st_pickle_i64(v, &n))
        snprintf(text, sizeof(text), "%lld", (long long)n);
    else
        return refuse(err, "the run id is neither a text nor a UUID");
    return set_run(out, st_slice_cstr(text), err);
}

static const struct st_pickle_value *kid(const struct st_pickle *p, const struct st_pickle_value *v, size_t i)
{
    return i < v->n ? &p->v[v->kids[i]] : NULL;
}

/* The last one of a name wins, as in a dict. */
static const struct st_pickle_value *keyword(const struct st_pickle *p, const struct st_pickle_value *dict)
{
    const struct st_pickle_value *found = NULL;

    for (size_t i = 0; i + 1 < dict->n; i += 2) {
        const struct st_pickle_value *key = kid(p, dict, i);

        if (key->kind == ST_PICKLE_STR && st_slice_is(key->bytes, KEYWORD))
            found = kid(p, dict, i + 1);
    }
    return found;
}

static stint_code pickle_call(const struct st_pickle *p, const char *function, struct st_rq_call *out, stint_error *err)
{
    const struct st_pickle_value *call = &p->v[p->root], *name, *args, *kwargs, *run;

    if ((call->kind != ST_PICKLE_TUPLE && call->kind != ST_PICKLE_LIST) || call->n != 4)
        return refuse(err, "it is not a tuple of four");
    name = kid(p, call, 0);
    args = kid(p, call, 2);
    kwargs = kid(p, call, 3);
    if (name->kind != ST_PICKLE_STR || (args->kind != ST_PICKLE_TUPLE && args->kind != ST_PICKLE_LIST) ||
        kwargs->kind != ST_PICKLE_DICT)
        return refuse(err, "it is not (function, instance, arguments, keyword arguments)");
    if (set_function(out, name->bytes, function, err))
        return STINT_EINVAL;
    run = args->n ? kid(p, args, 0) : keyword(p, kwargs);
    return run ? pickle_run(run, out, err) : no_run(err);
}

static stint_code read_pickle(struct st_slice doc, const char *function, struct st_rq_call *out, stint_error *err)
{
    struct st_pickle p;
    stint_code rc = st_pickle_read(doc, &p, err);

    if (rc == STINT_OK)
        rc = pickle_call(&p, function, out, err);
    st_pickle_clear(&p);
    return rc;
}

/* ---- JSON ----------------------------------------------------------------------------------------- */

static stint_code json_run(struct st_slice v, struct st_rq_call *out, stint_error *err)
{
    struct st_buf text;
    int64_t n;
    stint_code rc;

    if (st_json_i64(v, &n))
        return set_run(out, v, err);
    st_buf_init(&text, 6 * ST_ID_MAX);
    if (st_json_typeof(v) != ST_JSON_STRING)
        rc = refuse(err, "the run id is not a text");
    else if (!st_json_string(v, &text) || !text.p || text.failed)
        rc = refuse(err, "the run id is empty, or too long");
    else
        rc = set_run(out, st_buf_view(&text), err);
    st_buf_clear(&text);
    return rc;
}

static stint_code json_function(struct st_slice v, const char *function, struct st_rq_call *out, stint_error *err)
{
    struct st_buf text;
    stint_code rc;

    st_buf_init(&text, 4096);
    if (st_json_string(v, &text) && text.p && !text.failed)
        rc = set_function(out, st_buf_view(&text), function, err);
    else
        rc = refuse(err, "the function's name is empty, or too long");
    st_buf_clear(&text);
    return rc;
}

static stint_code read_json(struct st_slice doc, const char *function, struct st_rq_call *out, stint_error *err)
{
    struct st_slice part[4] = {{0}}, key, v, run = ST_NONE;
    size_t pos = 0, n = 0;

    if (!st_json_ok(doc))
        return refuse(err, "it is neither a pickle nor JSON");
    doc = st_json_trim(doc);
    while (st_json_typeof(doc) == ST_JSON_ARRAY && st_json_next(doc, &pos, &key, &v)) {
        if (n < 4)
            part[n] = v;
        n++;
    }
    if (n != 4 || st_json_typeof(part[0]) != ST_JSON_STRING || st_json_typeof(part[2]) != ST_JSON_ARRAY ||
        st_json_typeof(part[3]) != ST_JSON_OBJECT)
        return refuse(err, "it is not [function, instance, arguments, keyword arguments]");
    if (json_function(part[0], function, out, err))
        return STINT_EINVAL;
    pos = 0;
    if (!st_json_next(part[2], &pos, &key, &run))
        run = st_json_member(part[3], KEYWORD);
    return run.p ? json_run(run, out, err) : no_run(err);
}

/* ---- the whole ------------------------------------------------------------------------------------ */

stint_code st_rq_data_read(struct st_slice data, const char *function, struct st_rq_call *out, stint_error *err)
{
    struct st_buf plain;
    struct st_slice doc = data;
    bool too_large;
    stint_code rc;

    memset(out, 0, sizeof(*out));
    if (data.len == 0 || data.len > ST_RQ_DATA_MAX)
        return refuse(err, data.len ? "it is larger than 1 MiB" : "there is none");
    st_buf_init(&plain, ST_RQ_DATA_MAX);
    if (inflate_all(data, &plain, &too_large))
        doc = plain.p ? st_buf_view(&plain) : ST_SLICE("", 0);
    if (too_large) {
        rc = refuse(err, "it is larger than 1 MiB");
    } else if (doc.len && (unsigned char)doc.p[0] == 0x80) {
        rc = read_pickle(doc, function, out, err);
    } else {
        out->format = ST_RQ_JSON;
        rc = read_json(doc, function, out, err);
    }
    st_buf_clear(&plain);
    return rc;
}

/* As people are shown it: text that is no JSON is a string, no bytes are null. */
static bool as_json(struct st_slice result, struct st_buf *quoted, struct st_slice *json)
{
    struct st_jw w;

    *json = result.len ? result : ST_NONE;
    if (!json->p || st_json_ok(result))
        return true;
    if (!st_utf8_valid(result.p, result.len))
        return false;
    st_jw_init(&w, quoted);
    st_jw_str(&w, result);
    *json = quoted->p ? st_buf_view(quoted) : ST_NONE;
    return !quoted->failed;
}

static bool serialize(enum st_rq_format format, struct st_slice json, struct st_buf *out)
{
    struct st_buf b;
    bool ok;

    st_buf_init(&b, 8 * (size_t)ST_RQ_RESULT_MAX);
    if (format == ST_RQ_PICKLE)
        st_pickle_write(&b, json);
    else
        st_buf_slice(&b, json.p ? json : st_slice_cstr("null"));
    ok = !b.failed;
    if (ok)
        st_buf_base64(out, st_buf_view(&b));
    st_buf_clear(&b);
    return ok && !out->failed;
}

bool st_rq_data_result(enum st_rq_format format, struct st_slice result, struct st_buf *out)
{
    struct st_slice json;
    struct st_buf quoted;
    bool ok;

    if (result.len > ST_RQ_RESULT_MAX)
        return false;
    st_buf_init(&quoted, 8 * (size_t)ST_RQ_RESULT_MAX); /* a control character has six */
    ok = as_json(result, &quoted, &json) && serialize(format, json, out);
    st_buf_clear(&quoted);
    return ok;
}
