#include "store/postgres_op.h"
__attribute__((weak)) stint_code st_pg_prune(struct st_store *s, const struct st_prune_req *req, struct st_pruned *out, stint_error *err) { (void)s; (void)req; (void)out; (void)err; return STINT_OK; }
__attribute__((weak)) stint_code st_pg_check(struct st_store *s, st_finding_fn found, void *arg, stint_error *err) { (void)s; (void)found; (void)arg; (void)err; return STINT_OK; }
__attribute__((weak)) stint_code st_pg_upkeep(struct st_store *s, const struct st_prune_req *req, struct st_pruned *out, int64_t *again_us, stint_error *err) { (void)s; (void)req; (void)out; *again_us = 60 * ST_SEC; (void)err; return STINT_OK; }
__attribute__((weak)) void st_pg_care_close(struct st_pg *s) { (void)s; }
