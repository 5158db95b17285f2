/* SPDX-License-Identifier: Apache-2.0
 *
 * postgres_sql.c - the PostgreSQL store's statements, with a handle's schema filled in.
 *
 * Thread: the handle's.
 */
#include "store/postgres_int.h"

#include <stdlib.h>
#include <string.h>

#define SQL_MAX ((size_t)4 << 20)

static const char *const templates[PG_SQL_N] = {
#define X(name, sql) [PG_##name] = sql,
#include "store/postgres_sql.inc"
#undef X
};

/* {s} is the schema as an identifier, {s_plain} its bare name (for use inside a literal: a schema's name
 * has no quotes, see postgres.c). */
char *st_pg_in_schema(const struct st_pg *s, const char *sql)
{
    struct st_buf b;
    const char *hole;

    st_buf_init(&b, SQL_MAX);
    for (; (hole = strchr(sql, '{')); sql = hole) {
        st_buf_put(&b, sql, (size_t)(hole - sql));
        if (strncmp(hole, "{s}", 3) == 0) {
            st_buf_puts(&b, s->url.quoted);
            hole += 3;
        } else if (strncmp(hole, "{s_plain}", 9) == 0) {
            st_buf_puts(&b, s->url.schema);
            hole += 9;
        } else {
            st_buf_putc(&b, *hole++);
        }
    }
    st_buf_puts(&b, sql);
    return st_buf_take(&b);
}

const char *st_pg_sql_text(struct st_pg *s, enum st_pg_sql which)
{
    if (!s->text[which])
        s->text[which] = st_pg_in_schema(s, templates[which]);
    return s->text[which];
}
