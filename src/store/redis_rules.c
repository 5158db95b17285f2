/* SPDX-License-Identifier: Apache-2.0
 *
 * redis_rules.c - what a worker's rules were when it claimed, so that anybody can reap.
 *
 * A claim does not know a job's type before it has taken it, so the whole set of rules is kept, once per queue, under its digest;
 * the job carries the digest, and whoever reads it chooses the rule by the job's type as the worker did.
 * One line per rule: pattern, tab, queue or nothing, tab, the policy.
 */
#include <stdlib.h>
#include <string.h>

#include <sodium.h>

#include "store/redis_int.h"

#define TEXT_MAX  ((size_t)1 << 20)
#define RULES_MAX 4096

struct st_redis_rules {
    uint64_t mark; /* of the rules the text was made from */
    char ref[17];
    struct st_buf text;
};

static uint64_t mix(uint64_t h, const void *p, size_t n)
{
    const unsigned char *b = p;

    for (size_t i = 0; i < n; i++)
        h = (h ^ b[i]) * 0x100000001b3u;
    return (h ^ n) * 0x100000001b3u;
}

/* Cheap, so that a claim that asks as the last one did makes no text. */
static uint64_t mark_of(const struct st_type_rule *rules, size_t n)
{
    uint64_t h = 0xcbf29ce484222325u;

    for (size_t i = 0; i < n; i++) {
        const struct st_policy *p = &rules[i].policy;
        const int64_t numbers[] = {p->max_attempts, p->timeout_us, p->backoff, p->initial_us, p->max_us, p->n_delays};
        const double factors[] = {p->multiplier, p->jitter};

        h = mix(h, rules[i].pattern.p, rules[i].pattern.len);
        h = mix(h, rules[i].queue.p, rules[i].queue.len);
        h = mix(h, numbers, sizeof(numbers));
        h = mix(h, factors, sizeof(factors));
        h = mix(h, p->delays_us, (size_t)p->n_delays * sizeof(p->delays_us[0]));
    }
    return h;
}

static void text_make(struct st_redis_rules *r, const struct st_type_rule *rules, size_t n)
{
    unsigned char digest[crypto_generichash_BYTES];

    st_buf_reset(&r->text);
    for (size_t i = 0; i < n; i++) {
        st_buf_slice(&r->text, rules[i].pattern);
        st_buf_putc(&r->text, '\t');
        st_buf_slice(&r->text, rules[i].queue);
        st_buf_putc(&r->text, '\t');
        st_policy_write(&rules[i].policy, &r->text);
        st_buf_putc(&r->text, '\n');
    }
    crypto_generichash(digest, sizeof(digest), (const unsigned char *)r->text.p, r->text.len, NULL, 0);
    sodium_bin2hex(r->ref, sizeof(r->ref), digest, 8);
}

const char *st_redis_rules_ref(struct st_redis_store *s, const struct st_type_rule *rules, size_t n,
                               struct st_slice *text)
{
    static const char none[] = "0000000000000000";
    const uint64_t mark = mark_of(rules, n);

    *text = ST_NONE;
    if (!n)
        return none;
    if (!s->rules) {
        s->rules = calloc(1, sizeof(*s->rules));
        if (!s->rules)
            return none;
        st_buf_init(&s->rules->text, TEXT_MAX);
    }
    if (!s->rules->text.len || s->rules->mark != mark) {
        text_make(s->rules, rules, n);
        s->rules->mark = mark;
    }
    if (s->rules->text.failed) /* no memory, or more than we keep: whoever reaps goes by the default */
        return none;
    *text = st_buf_view(&s->rules->text);
    return s->rules->ref;
}

stint_code st_redis_rules_write(struct st_redis_store *s, struct st_slice queue, const char *ref, struct st_slice text,
                                stint_error *err)
{
    struct st_redis_key name;
    const struct st_slice key = st_redis_own_key(&name, queue, "rules"), args[] = {st_slice_cstr(ref), text};

    st_redis_batch_reset(&s->b);
    st_redis_add_script(&s->b, ST_REDIS_WRITE, st_redis_lua(ST_LUA_rules), &key, 1, args, 2);
    return st_redis_go(s, err);
}

void st_redis_rules_close(struct st_redis_store *s)
{
    if (!s->rules)
        return;
    st_buf_clear(&s->rules->text);
    free(s->rules);
    s->rules = NULL;
}

/* ---- reading ----------------------------------------------------------------------------------------------- */

static struct st_slice cut(struct st_slice *from, char at)
{
    const char *end = from->len ? memchr(from->p, at, from->len) : NULL;
    const size_t n = end ? (size_t)(end - from->p) : from->len;
    const struct st_slice part = ST_SLICE(from->p, n);

    from->p += n + (end != NULL);
    from->len -= n + (end != NULL);
    return part;
}

static bool rule_read(struct st_slice line, struct st_type_rule *out)
{
    memset(out, 0, sizeof(*out));
    out->pattern = cut(&line, '\t');
    out->queue = cut(&line, '\t');
    if (!out->queue.len)
        out->queue = ST_NONE;
    return st_policy_read(line, &out->policy);
}

/* As st_rule_find, one rule after the other, so that nothing is allocated. */
struct st_policy st_redis_rules_policy(struct st_slice text, struct st_slice queue, struct st_slice type)
{
    struct st_type_rule pair[2];
    bool any = false;

    for (int i = 0; text.len && i < RULES_MAX; i++) {
        if (!rule_read(cut(&text, '\n'), &pair[any ? 1 : 0]))
            continue;
        if (!any)
            any = st_rule_find(pair, 1, queue, type) != NULL;
        else if (st_rule_find(pair, 2, queue, type) == &pair[1])
            pair[0] = pair[1];
    }
    return any ? pair[0].policy : st_policy_default;
}
