-- SPDX-License-Identifier: Apache-2.0
--
-- postgres_2_down.sql - takes away what users call and read in SQL; no job is touched.
DROP VIEW IF EXISTS {s}.task_runs, {s}.tasks, {s}.workers, {s}.model_runs, {s}.queue, {s}.live, {s}.dead;
DROP FUNCTION IF EXISTS {s}.get(text), {s}.recent(int);
DROP VIEW IF EXISTS {s}.job, {s}._job, {s}._live, {s}._dead;
DROP FUNCTION IF EXISTS {s}._error_of(bytea), {s}._last(bytea), {s}._first(bytea), {s}._result(bytea, int8), {s}._entry_of(bytea);
DROP TYPE IF EXISTS {s}._error;
DROP FUNCTION IF EXISTS {s}.enqueue(text, json, text, int, interval, timestamptz, int, interval, text, text, text, json),
    {s}.enqueue_many(text, json[], text, int, interval, timestamptz, int, interval, text[], text, text[], json),
    {s}.cancel(text), {s}.retry(text), {s}.id_key(text), {s}._base64(bytea), {s}._jsonb(bytea), {s}._text(bytea),
    {s}._kind_name(int2), {s}._id_new(int8), {s}._each_check(bytea[], text[], text[]), {s}._meta_check(json),
    {s}._numbers_check(int4, int4), {s}._unique_check(text, bool), {s}._due_check(interval, timestamptz),
    {s}._span(text, interval), {s}._name_check(text, text), {s}._control();
GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA {s} TO PUBLIC;
