#include "store/postgres_op.h"
__attribute__((weak)) stint_code st_pg_check(struct st_store *s, st_finding_fn found, void *arg, stint_error *err) { (void)s; (void)found; (void)arg; (void)err; return STINT_OK; }
