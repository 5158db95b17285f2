/* SPDX-License-Identifier: Apache-2.0
 *
 * rq_pickle.c - a stack machine for the harmless part of pickle, protocols 2 to 5.
 *
 *     bytes -> instruction -> stack of value numbers --STOP--> the one value left
 *
 * Invariants:
 *   (1) nothing is imported, called or looked up: a global other than uuid.UUID ends the reading;
 *   (2) every length is checked against what is left before it is used;
 *   (3) values, stack and memo have one common maximum, so the memory is bounded whatever the input says;
 *   (4) values are never followed here, so circles among them do no harm.
 */
#include "intake/rq_pickle.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MARK      UINT32_MAX /* on the stack only */
#define STATE_MAX 16         /* keys and values of a UUID's state */

struct reader {
    const unsigned char *p, *end;
    struct st_pickle *out;
    uint32_t *stack, *memo;
    size_t depth, n_memo;
    bool stopped;
    stint_error *err;
};

static bool refuse(struct reader *r, const char *why)
{
    st_fail(r->err, STINT_EINVAL, "the pickle %s", why);
    return false;
}

static bool no_memory(struct reader *r)
{
    st_fail(r->err, STINT_ENOMEM, "no memory to read a pickle");
    return false;
}

/* ---- bytes -------------------------------------------------------------------------------------- */

/* n bytes, or NULL when there are not so many. */
static const unsigned char *bytes(struct reader *r, uint64_t n)
{
    const unsigned char *at = r->p;

    if (n > (uint64_t)(r->end - r->p)) {
        refuse(r, "ends too soon");
        return NULL;
    }
    r->p += n;
    return at;
}

/* A little-endian number of n bytes. */
static bool number(struct reader *r, size_t n, uint64_t *out)
{
    const unsigned char *at = bytes(r, n);

    *out = 0;
    for (size_t i = 0; at && i < n; i++)
        *out |= (uint64_t)at[i] << 8 * i;
    return at != NULL;
}

/* Up to the end of the line. */
static bool line(struct reader *r, struct st_slice *out)
{
    const unsigned char *nl = memchr(r->p, '\n', (size_t)(r->end - r->p));

    if (!nl)
        return refuse(r, "ends too soon");
    *out = ST_SLICE((const char *)r->p, (size_t)(nl - r->p));
    r->p = nl + 1;
    return true;
}

/* ---- the stack ---------------------------------------------------------------------------------- */

static bool push(struct reader *r, uint32_t v)
{
    if (r->depth == ST_PICKLE_VALUES_MAX)
        return refuse(r, "is too large");
    r->stack[r->depth++] = v;
    return true;
}

static bool pop(struct reader *r, uint32_t *out)
{
    if (r->depth == 0 || r->stack[r->depth - 1] == MARK)
        return refuse(r, "takes a value where there is none");
    *out = r->stack[--r->depth];
    return true;
}

static struct st_pickle_value *top(struct reader *r, enum st_pickle_kind kind)
{
    struct st_pickle_value *v;

    if (r->depth == 0 || r->stack[r->depth - 1] == MARK) {
        refuse(r, "takes a value where there is none");
        return NULL;
    }
    v = &r->out->v[r->stack[r->depth - 1]];
    if (v->kind != kind) {
        refuse(r, "adds to something that is not a container");
        return NULL;
    }
    return v;
}

/* A new value on the stack, or NULL. */
static struct st_pickle_value *make(struct reader *r, enum st_pickle_kind kind)
{
    struct st_pickle_value *v;

    if (r->out->n == ST_PICKLE_VALUES_MAX) {
        refuse(r, "is too large");
        return NULL;
    }
    v = &r->out->v[r->out->n];
    memset(v, 0, sizeof(*v));
    v->kind = kind;
    return push(r, (uint32_t)r->out->n++) ? v : NULL;
}

static bool adopt(struct reader *r, struct st_pickle_value *v, const uint32_t *kids, size_t n)
{
    if (v->n + n > v->cap) {
        const size_t cap = v->n + n > 2 * v->cap ? v->n + n : 2 * v->cap;
        uint32_t *more = realloc(v->kids, cap * sizeof(*more));

        if (!more)
            return no_memory(r);
        v->kids = more;
        v->cap = cap;
    }
    if (n)
        memcpy(v->kids + v->n, kids, n * sizeof(*kids));
    v->n += n;
    return true;
}

/* Where the values since the last mark begin; the mark goes. */
static bool since_mark(struct reader *r, size_t *first, size_t *n)
{
    size_t i = r->depth;

    while (i > 0 && r->stack[i - 1] != MARK)
        i--;
    if (i == 0)
        return refuse(r, "ends a list that was not begun");
    *first = i;
    *n = r->depth - i;
    r->depth = i - 1;
    return true;
}

/* ---- values ------------------------------------------------------------------------------------- */

static bool make_text(struct reader *r, enum st_pickle_kind kind, size_t width)
{
    struct st_pickle_value *v;
    const unsigned char *at;
    uint64_t n;

    if (!number(r, width, &n) || !(at = bytes(r, n)))
        return false;
    if (kind == ST_PICKLE_STR && !st_utf8_valid((const char *)at, (size_t)n))
        return refuse(r, "has a text that is not UTF-8");
    v = make(r, kind);
    if (v)
        v->bytes = ST_SLICE((const char *)at, (size_t)n);
    return v != NULL;
}

/* BININT is signed, the shorter ones are not. */
static bool make_int(struct reader *r, size_t width)
{
    struct st_pickle_value *v;
    uint64_t n;

    if (!number(r, width, &n))
        return false;
    if (width == 4)
        n = (uint64_t)(int64_t)(int32_t)(uint32_t)n;
    v = make(r, ST_PICKLE_INT);
    if (!v)
        return false;
    for (size_t i = 0; i < 8; i++)
        v->raw[i] = (unsigned char)(n >> 8 * i);
    v->bytes = ST_SLICE((const char *)v->raw, 8);
    return true;
}

static bool make_long(struct reader *r)
{
    static const char zero[1] = {0};
    struct st_pickle_value *v;
    const unsigned char *at;
    uint64_t n;

    if (!number(r, 1, &n) || !(at = bytes(r, n)) || !(v = make(r, ST_PICKLE_INT)))
        return false;
    v->bytes = n ? ST_SLICE((const char *)at, (size_t)n) : ST_SLICE(zero, 1);
    return true;
}

/* The last n of the stack become a tuple. */
static bool make_tuple(struct reader *r, size_t n)
{
    uint32_t kids[3];
    struct st_pickle_value *v;

    for (size_t i = n; i > 0; i--)
        if (!pop(r, &kids[i - 1]))
            return false;
    v = make(r, ST_PICKLE_TUPLE);
    return v && adopt(r, v, kids, n);
}

static bool make_marked_tuple(struct reader *r)
{
    struct st_pickle_value t = {.kind = ST_PICKLE_TUPLE}, *v;
    size_t first, n;

    if (!since_mark(r, &first, &n) || !adopt(r, &t, r->stack + first, n))
        return false;
    v = make(r, ST_PICKLE_TUPLE);
    if (!v) {
        free(t.kids);
        return false;
    }
    *v = t;
    return true;
}

/* The last n values of the stack, or those since the mark, go into the container below them. */
static bool add_items(struct reader *r, enum st_pickle_kind kind, size_t n, bool marked)
{
    struct st_pickle_value *v;
    size_t first;

    if (marked && !since_mark(r, &first, &n))
        return false;
    if (!marked) {
        for (size_t i = 0; i < n; i++)
            if (r->depth < n - i || r->stack[r->depth - 1 - i] == MARK)
                return refuse(r, "takes a value where there is none");
        r->depth -= n;
        first = r->depth;
    }
    if (kind == ST_PICKLE_DICT && n % 2)
        return refuse(r, "has a key without a value");
    v = top(r, kind);
    return v && adopt(r, v, r->stack + first, n);
}

/* ---- the one class -------------------------------------------------------------------------------- */

static bool refuse_global(struct reader *r, struct st_slice module, struct st_slice name)
{
    char m[64], n[64];

    snprintf(m, sizeof(m), "%.*s", (int)(module.len < 60 ? module.len : 60), module.p ? module.p : "");
    snprintf(n, sizeof(n), "%.*s", (int)(name.len < 60 ? name.len : 60), name.p ? name.p : "");
    for (char *c = m; *c; c++)
        *c = *c < ' ' || *c > '~' ? '?' : *c;
    for (char *c = n; *c; c++)
        *c = *c < ' ' || *c > '~' ? '?' : *c;
    st_fail(r->err, STINT_EINVAL, "the pickle wants %s.%s, and nothing is ever run from a pickle", m, n);
    return false;
}

static bool make_class(struct reader *r, struct st_slice module, struct st_slice name)
{
    if (!st_slice_is(module, "uuid") || !st_slice_is(name, "UUID"))
        return refuse_global(r, module, name);
    return make(r, ST_PICKLE_CLASS) != NULL;
}

static bool stack_global(struct reader *r)
{
    uint32_t module, name;

    if (!pop(r, &name) || !pop(r, &module))
        return false;
    if (r->out->v[name].kind != ST_PICKLE_STR || r->out->v[module].kind != ST_PICKLE_STR)
        return refuse(r, "names a class by something that is not a text");
    return make_class(r, r->out->v[module].bytes, r->out->v[name].bytes);
}

static bool line_global(struct reader *r)
{
    struct st_slice module, name;

    return line(r, &module) && line(r, &name) && make_class(r, module, name);
}

/* class, () -> an object whose number is not known yet. */
static bool new_object(struct reader *r)
{
    uint32_t args, class;

    if (!pop(r, &args) || !pop(r, &class))
        return false;
    if (r->out->v[class].kind != ST_PICKLE_CLASS || r->out->v[args].kind != ST_PICKLE_TUPLE || r->out->v[args].n)
        return refuse(r, "makes an object that is not a UUID");
    return make(r, ST_PICKLE_UUID) != NULL;
}

/* The 128-bit number, big end first. */
static bool uuid_set(struct reader *r, struct st_pickle_value *u, const struct st_pickle_value *number_)
{
    const unsigned char *b = (const unsigned char *)number_->bytes.p;
    size_t n = number_->bytes.len;

    if (number_->kind != ST_PICKLE_INT)
        return refuse(r, "has a UUID without a number");
    while (n > 16 && b[n - 1] == 0)
        n--;
    if (n > 16 || (n == number_->bytes.len && n < 16 && (b[n - 1] & 0x80)))
        return refuse(r, "has a UUID that is none");
    memset(u->uuid, 0, sizeof(u->uuid));
    for (size_t i = 0; i < n; i++)
        u->uuid[15 - i] = b[i];
    return true;
}

/* object, {"int": number} -> object */
static bool build(struct reader *r)
{
    struct st_pickle_value *u, *state;
    uint32_t i;

    if (!pop(r, &i))
        return false;
    state = &r->out->v[i];
    if (!(u = top(r, ST_PICKLE_UUID)))
        return false;
    if (state->kind != ST_PICKLE_DICT || state->n > STATE_MAX) /* it is looked through each time that it is used */
        return refuse(r, "has a UUID without a number");
    for (size_t k = 0; k + 1 < state->n; k += 2) {
        const struct st_pickle_value *key = &r->out->v[state->kids[k]];

        if (key->kind == ST_PICKLE_STR && st_slice_is(key->bytes, "int"))
            return uuid_set(r, u, &r->out->v[state->kids[k + 1]]);
    }
    return refuse(r, "has a UUID without a number");
}

/* ---- the memo ------------------------------------------------------------------------------------- */

static bool memo_put(struct reader *r, uint64_t at)
{
    if (r->depth == 0 || r->stack[r->depth - 1] == MARK)
        return refuse(r, "takes a value where there is none");
    if (at >= ST_PICKLE_VALUES_MAX)
        return refuse(r, "is too large");
    while (r->n_memo <= at)
        r->memo[r->n_memo++] = MARK;
    r->memo[at] = r->stack[r->depth - 1];
    return true;
}

static bool memo_get(struct reader *r, uint64_t at)
{
    if (at >= r->n_memo || r->memo[at] == MARK)
        return refuse(r, "refers to a value that is not there");
    return push(r, r->memo[at]);
}

static bool memo_op(struct reader *r, size_t width, bool (*fn)(struct reader *, uint64_t))
{
    uint64_t at;

    return number(r, width, &at) && fn(r, at);
}

/* ---- the machine ---------------------------------------------------------------------------------- */

static bool simple_value(struct reader *r, unsigned char op, bool *known)
{
    *known = true;
    switch (op) {
    case 'N':
        return make(r, ST_PICKLE_NONE) != NULL;
    case 0x88:
    case 0x89:
        return make(r, ST_PICKLE_BOOL) != NULL;
    case 'J':
        return make_int(r, 4);
    case 'K':
        return make_int(r, 1);
    case 'M':
        return make_int(r, 2);
    case 0x8a:
        return make_long(r);
    case 'G':
        return bytes(r, 8) && make(r, ST_PICKLE_FLOAT);
    case 0x8c:
        return make_text(r, ST_PICKLE_STR, 1);
    case 'X':
        return make_text(r, ST_PICKLE_STR, 4);
    case 0x8d:
        return make_text(r, ST_PICKLE_STR, 8);
    case 'C':
        return make_text(r, ST_PICKLE_BYTES, 1);
    case 'B':
        return make_text(r, ST_PICKLE_BYTES, 4);
    }
    *known = false;
    return true;
}

static bool container_op(struct reader *r, unsigned char op, bool *known)
{
    *known = true;
    switch (op) {
    case '(':
        return push(r, MARK);
    case ')':
        return make(r, ST_PICKLE_TUPLE) != NULL;
    case 't':
        return make_marked_tuple(r);
    case 0x85:
    case 0x86:
    case 0x87:
        return make_tuple(r, (size_t)(op - 0x84));
    case ']':
        return make(r, ST_PICKLE_LIST) != NULL;
    case 'a':
        return add_items(r, ST_PICKLE_LIST, 1, false);
    case 'e':
        return add_items(r, ST_PICKLE_LIST, 0, true);
    case '}':
        return make(r, ST_PICKLE_DICT) != NULL;
    case 's':
        return add_items(r, ST_PICKLE_DICT, 2, false);
    case 'u':
        return add_items(r, ST_PICKLE_DICT, 0, true);
    }
    *known = false;
    return true;
}

static bool other_op(struct reader *r, unsigned char op)
{
    uint64_t n;

    switch (op) {
    case 0x80:
        return number(r, 1, &n) && (n <= 5 || refuse(r, "is of a protocol that is not known"));
    case 0x95:
        return number(r, 8, &n);
    case 0x94:
        return memo_put(r, r->n_memo);
    case 'q':
        return memo_op(r, 1, memo_put);
    case 'r':
        return memo_op(r, 4, memo_put);
    case 'h':
        return memo_op(r, 1, memo_get);
    case 'j':
        return memo_op(r, 4, memo_get);
    case 'c':
        return line_global(r);
    case 0x93:
        return stack_global(r);
    case 0x81:
        return new_object(r);
    case 'b':
        return build(r);
    case '.':
        r->stopped = true;
        return true;
    }
    st_fail(r->err, STINT_EINVAL, "the pickle has the instruction 0x%02x, which plain values do not need", op);
    return false;
}

static bool run(struct reader *r)
{
    while (!r->stopped) {
        const unsigned char *op = bytes(r, 1);
        bool known = false;

        if (!op || !simple_value(r, *op, &known))
            return false;
        if (!known && !container_op(r, *op, &known))
            return false;
        if (!known && !other_op(r, *op))
            return false;
    }
    return r->depth == 1 && r->stack[0] != MARK ? true : refuse(r, "does not end with one value");
}

stint_code st_pickle_read(struct st_slice doc, struct st_pickle *out, stint_error *err)
{
    struct reader r = {.p = (const unsigned char *)doc.p, .out = out};
    stint_error local = {0};
    size_t max = doc.len < ST_PICKLE_VALUES_MAX ? doc.len : ST_PICKLE_VALUES_MAX;
    bool ok;

    memset(out, 0, sizeof(*out));
    if (doc.len == 0 || doc.len > ST_PICKLE_BYTES_MAX)
        return st_fail(err, STINT_EINVAL, "the pickle is %s", doc.len ? "too large" : "empty");
    r.end = r.p + doc.len;
    r.err = &local;
    /* each value, each place on the stack and each MEMOIZE takes a byte at least; BINPUT may name any place */
    out->v = calloc(max, sizeof(*out->v));
    r.stack = malloc(max * sizeof(*r.stack));
    r.memo = malloc(ST_PICKLE_VALUES_MAX * sizeof(*r.memo));
    ok = out->v && r.stack && r.memo ? run(&r) : no_memory(&r);
    if (ok)
        out->root = r.stack[0];
    free(r.stack);
    free(r.memo);
    if (!ok && err)
        *err = local;
    return ok ? STINT_OK : local.code;
}

void st_pickle_clear(struct st_pickle *p)
{
    for (size_t i = 0; p->v && i < p->n; i++)
        free(p->v[i].kids);
    free(p->v);
    memset(p, 0, sizeof(*p));
}

bool st_pickle_i64(const struct st_pickle_value *v, int64_t *out)
{
    const unsigned char *b = (const unsigned char *)v->bytes.p;
    uint64_t n;

    if (v->kind != ST_PICKLE_INT || v->bytes.len > 8)
        return false;
    n = b[v->bytes.len - 1] & 0x80 ? UINT64_MAX : 0;
    for (size_t i = v->bytes.len; i > 0; i--)
        n = n << 8 | b[i - 1];
    *out = (int64_t)n;
    return true;
}
