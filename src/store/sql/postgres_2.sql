-- SPDX-License-Identifier: Apache-2.0
--
-- postgres_2.sql - schema version 2: what users call and read in SQL.  docs/postgres.md is its manual.
--
--     functions   enqueue, enqueue_many, cancel, retry, get, recent, id_key (and fence_ok, from version 1)
--     views       job, live, dead, queue; in the words of others: task_runs, tasks, workers, model_runs
--
-- The functions that write run with the rights of the schema's owner, so that a producer needs nothing but EXECUTE, and
-- with a search_path, and a way to read literals, of their own.  Names that begin with _ are ours: they may change with any version.

-- ---- checks -----------------------------------------------------------------------------------

-- What a control character is.  A database of SQL_ASCII has bytes for characters: those of others are not looked at.
CREATE FUNCTION {s}._control() RETURNS text LANGUAGE sql STABLE AS $f$
    SELECT CASE WHEN pg_catalog.getdatabaseencoding() OPERATOR(pg_catalog.=) 'SQL_ASCII' THEN E'[\\u0001-\\u001f\\u007f]'
        ELSE E'[\\u0001-\\u001f\\u007f-\\u009f]' END $f$;

-- ST001 with a hint, as src/job/names.c says it.  what: queue or type.
CREATE FUNCTION {s}._name_check(p_what text, p_name text) RETURNS void
LANGUAGE plpgsql STABLE SET search_path = {s}, pg_temp AS $f$
DECLARE
    v_bytes int4 := octet_length(convert_to(p_name, 'UTF8'));
    v_shown text := regexp_replace(left(p_name, 48), _control(), '?', 'g')
        || CASE WHEN length(p_name) > 48 THEN '...' ELSE '' END;
    v_wrong text;
BEGIN
    IF coalesce(v_bytes, 0) = 0 THEN
        RAISE EXCEPTION 'the % name is empty', p_what USING ERRCODE = 'ST001', HINT = 'it has 1 to 128 bytes';
    ELSIF v_bytes > 128 THEN
        RAISE EXCEPTION 'the % name has % bytes, the most is 128', p_what, v_bytes
            USING ERRCODE = 'ST001', HINT = 'shorten it, for example to a hash of it';
    END IF;
    v_wrong := CASE WHEN p_name ~ _control() THEN 'a control character'
        WHEN p_name ~ ' ' OR getdatabaseencoding() <> 'SQL_ASCII'
            AND p_name ~ '[\u00a0\u1680\u2000-\u200b\u2028\u2029\u202f\u205f\u3000\ufeff]' THEN 'a blank in it'
        WHEN p_name ~ '[*{},"''`]' THEN 'a ''' || substring(p_name FROM '[*{},"''`]') || ''' in it' END;
    IF v_wrong IS NOT NULL THEN
        RAISE EXCEPTION '% name "%" has %', p_what, v_shown, v_wrong
            USING ERRCODE = 'ST001', HINT = 'use letters, digits and any of . _ - : / instead';
    ELSIF p_what = 'queue' AND p_name ~ '(^\.|\.\.|\.$)' THEN
        RAISE EXCEPTION 'queue name "%" has an empty part', v_shown
            USING ERRCODE = 'ST001', HINT = 'write parent.sub, with a name on both sides of each dot';
    END IF;
END $f$;

-- Microseconds of a span of 0 to 36500 days; NULL stays NULL.
CREATE FUNCTION {s}._span(p_what text, p_span interval) RETURNS int8
LANGUAGE plpgsql IMMUTABLE SET search_path = {s}, pg_temp AS $f$
BEGIN
    IF p_span < interval '0' OR p_span > interval '36500 days' THEN
        RAISE EXCEPTION 'the % is %', p_what, CASE WHEN p_span < interval '0' THEN 'negative' ELSE 'longer than 36500d' END
            USING ERRCODE = 'ST001', HINT = 'a duration is 0s to 36500d';
    END IF;
    RETURN round(extract(epoch FROM p_span) * 1000000)::int8;
END $f$;

CREATE FUNCTION {s}._due_check(p_delay interval, p_run_at timestamptz, OUT due int8, OUT delay int8)
LANGUAGE plpgsql IMMUTABLE SET search_path = {s}, pg_temp AS $f$
BEGIN
    IF p_run_at IS NOT NULL AND p_delay IS NOT NULL THEN
        RAISE EXCEPTION 'both delay and run_at are given' USING ERRCODE = 'ST001', HINT = 'one of them is enough: take the other out';
    ELSIF p_run_at <= timestamptz 'epoch' OR p_run_at >= timestamptz '10000-01-01 00:00:00+00' THEN
        RAISE EXCEPTION 'the time to run at is %', CASE WHEN p_run_at <= timestamptz 'epoch' THEN 'before 1970'
            ELSE 'after the year 9999' END USING ERRCODE = 'ST001', HINT = 'a time is in the years 1970 to 9999';
    END IF;
    due := coalesce(_us(p_run_at), 0);
    delay := coalesce(_span('delay', p_delay), 0);
END $f$;

-- active, forever, or for how long a key is held.
CREATE FUNCTION {s}._unique_check(p_unique text, p_keyed bool, OUT mode int2, OUT win int8)
LANGUAGE plpgsql IMMUTABLE SET search_path = {s}, pg_temp AS $f$
DECLARE
    c_hint CONSTANT text := 'use active, forever or a duration such as 10 minutes';
BEGIN
    mode := CASE WHEN NOT p_keyed AND p_unique IS NULL THEN 0 WHEN coalesce(p_unique, 'active') = 'active' THEN 1
        WHEN p_unique = 'forever' THEN 3 ELSE 2 END;
    IF mode > 0 AND NOT p_keyed THEN
        RAISE EXCEPTION 'unique_for is given without a key' USING ERRCODE = 'ST001',
            HINT = 'say which jobs are the same: give them a key';
    END IF;
    IF mode = 2 THEN
        IF p_unique ~ '^\s*[0-9.]*\s*$' THEN
            RAISE EXCEPTION 'unique_for "%" has no unit', left(p_unique, 48) USING ERRCODE = 'ST001', HINT = c_hint;
        END IF;
        BEGIN
            win := _span('window of unique_for', p_unique::interval);
        EXCEPTION WHEN data_exception THEN
            RAISE EXCEPTION 'unique_for "%" is no duration', left(p_unique, 48) USING ERRCODE = 'ST001', HINT = c_hint;
        END;
        IF win = 0 THEN
            RAISE EXCEPTION 'unique_for: a window of no time holds nothing' USING ERRCODE = 'ST001', HINT = c_hint;
        END IF;
    END IF;
END $f$;

CREATE FUNCTION {s}._numbers_check(p_priority int4, p_max int4) RETURNS void
LANGUAGE plpgsql IMMUTABLE SET search_path = {s}, pg_temp AS $f$
BEGIN
    IF p_priority NOT BETWEEN -32768 AND 32767 THEN
        RAISE EXCEPTION 'priority % is not in -32768..32767', p_priority
            USING ERRCODE = 'ST001', HINT = 'choose a number in that range; higher runs first';
    ELSIF p_max NOT BETWEEN 0 AND 1000000 THEN
        RAISE EXCEPTION 'max_attempts % is %', p_max, CASE WHEN p_max < 0 THEN 'negative' ELSE 'more than 1000000' END
            USING ERRCODE = 'ST001', HINT = 'say how often it may run, 0 for no limit';
    END IF;
END $f$;

CREATE FUNCTION {s}._meta_check(p_meta json) RETURNS bytea
LANGUAGE plpgsql IMMUTABLE SET search_path = {s}, pg_temp AS $f$
BEGIN
    IF json_typeof(p_meta) <> 'object' THEN
        RAISE EXCEPTION 'meta is not a JSON object' USING ERRCODE = 'ST001', HINT = 'write an object, such as {"by":"ada"}';
    ELSIF octet_length(p_meta::text) > 1048576 THEN
        RAISE EXCEPTION 'meta has % bytes, the limit is 1048576', octet_length(p_meta::text)
            USING ERRCODE = 'ST001', HINT = 'put the data elsewhere and name it here';
    END IF;
    RETURN convert_to(p_meta::text, 'UTF8');
END $f$;

-- Those of many that are wrong, if any: the first one is told.
CREATE FUNCTION {s}._each_check(p_payload bytea[], p_key text[], p_id text[]) RETURNS void
LANGUAGE plpgsql STABLE SET search_path = {s}, pg_temp AS $f$
DECLARE
    u record;
BEGIN
    FOR u IN SELECT octet_length(x.payload) AS bytes, octet_length(convert_to(x.key, 'UTF8')) AS key_bytes,
                octet_length(convert_to(x.id, 'UTF8')) AS id_bytes, x.id ~ _control() AS control
            FROM unnest(p_payload, p_key, p_id) WITH ORDINALITY x(payload, key, id, ord)
            WHERE octet_length(x.payload) > 1048576 OR octet_length(convert_to(x.key, 'UTF8')) NOT BETWEEN 1 AND 512
                OR octet_length(convert_to(x.id, 'UTF8')) NOT BETWEEN 1 AND 128 OR x.id ~ _control()
            ORDER BY x.ord LIMIT 1 LOOP
        IF u.bytes > 1048576 THEN
            RAISE EXCEPTION 'the payload has % bytes, the limit is 1048576', u.bytes
                USING ERRCODE = 'ST001', HINT = 'put the data in a file or a table and enqueue its name';
        ELSIF u.key_bytes = 0 THEN
            RAISE EXCEPTION 'the unique key is empty' USING ERRCODE = 'ST001', HINT = 'it has 1 to 512 bytes';
        ELSIF u.key_bytes > 512 THEN
            RAISE EXCEPTION 'the unique key has % bytes, the most is 512', u.key_bytes
                USING ERRCODE = 'ST001', HINT = 'shorten it, for example to a hash of it';
        ELSIF u.id_bytes = 0 THEN
            RAISE EXCEPTION 'the id is empty' USING ERRCODE = 'ST001', HINT = 'give it 1 to 128 bytes, or leave it out';
        ELSIF u.id_bytes > 128 THEN
            RAISE EXCEPTION 'the id has % bytes, more than 128', u.id_bytes
                USING ERRCODE = 'ST001', HINT = 'shorten it, for example to a hash of it';
        ELSE
            RAISE EXCEPTION 'the id has a control character in it'
                USING ERRCODE = 'ST001', HINT = 'an id is text without control characters, such as order-42';
        END IF;
    END LOOP;
END $f$;

-- ---- enqueue ----------------------------------------------------------------------------------

-- A new id, as a key: UUIDv7 of this microsecond, the part below the millisecond in its first 12 random bits.
CREATE FUNCTION {s}._id_new(p_us int8) RETURNS bytea LANGUAGE sql VOLATILE AS $f$
    SELECT pg_catalog.set_byte(pg_catalog.set_byte(bytea E'\\x00' OPERATOR(pg_catalog.||) pg_catalog.substr(pg_catalog.int8send(p_us / 1000::int8), 3)
            OPERATOR(pg_catalog.||) pg_catalog.substr(pg_catalog.uuid_send(pg_catalog.gen_random_uuid()), 7),
        7, 112 + (p_us % 1000::int8 * 4096::int8 / 1000::int8 / 256::int8)::int4), 8,
        (p_us % 1000::int8 * 4096::int8 / 1000::int8 % 256::int8)::int4) $f$;

-- Adds one job per payload and answers their ids in that order; for a key that is held, the id of its holder.
CREATE FUNCTION {s}.enqueue_many(type text, payloads json[], queue text DEFAULT 'default', priority int DEFAULT 0,
    delay interval DEFAULT NULL, run_at timestamptz DEFAULT NULL, max_attempts int DEFAULT NULL, timeout interval DEFAULT NULL,
    keys text[] DEFAULT NULL, unique_for text DEFAULT NULL, ids text[] DEFAULT NULL, meta json DEFAULT NULL)
RETURNS SETOF text LANGUAGE plpgsql SECURITY DEFINER SET search_path = {s}, pg_temp
SET standard_conforming_strings = on AS $f$
#variable_conflict use_variable
DECLARE
    n int4 := coalesce(cardinality(payloads), 0);
    v_queue text := coalesce(queue, 'default');
    v_priority int4 := coalesce(priority, 0);
    v_due record;
    v_unique record;
    v_timeout int8;
    v_meta bytea;
    v_payload bytea[];
    v_id bytea[];
    v_lane int8;
    v_us int8;
BEGIN
    PERFORM _name_check('type', type), _name_check('queue', v_queue), _numbers_check(v_priority, max_attempts);
    SELECT * INTO v_due FROM _due_check(delay, run_at);
    SELECT * INTO v_unique FROM _unique_check(unique_for, keys IS NOT NULL);
    v_timeout := _span('timeout', timeout);
    v_meta := _meta_check(meta);
    IF ids IS NOT NULL THEN -- whatever its bounds and dimensions
        ids := ARRAY(SELECT u.x FROM unnest(ids) WITH ORDINALITY u(x, o) ORDER BY u.o);
    END IF;
    IF keys IS NOT NULL THEN
        keys := ARRAY(SELECT u.x FROM unnest(keys) WITH ORDINALITY u(x, o) ORDER BY u.o);
    END IF;
    IF cardinality(keys) <> n OR cardinality(ids) <> n THEN
        RAISE EXCEPTION 'there are % payloads and % %', n, cardinality(CASE WHEN cardinality(keys) <> n THEN keys ELSE ids END),
            CASE WHEN cardinality(keys) <> n THEN 'keys' ELSE 'ids' END
            USING ERRCODE = 'ST001', HINT = 'give one for each payload, or leave them out';
    ELSIF array_position(keys, NULL) IS NOT NULL THEN
        RAISE EXCEPTION 'one of the keys is NULL' USING ERRCODE = 'ST001', HINT = 'give one for each payload, or leave them out';
    ELSIF n = 0 THEN
        RETURN;
    END IF;
    SELECT array_agg(convert_to(coalesce(u.p, 'null')::text, 'UTF8') ORDER BY u.o) INTO v_payload
        FROM unnest(payloads) WITH ORDINALITY u(p, o);
    PERFORM _each_check(v_payload, keys, ids);
    v_us := _us(clock_timestamp());
    SELECT array_agg(CASE WHEN ids[u.o] IS NULL THEN _id_new(v_us + u.o) ELSE _key(ids[u.o]) END ORDER BY u.o) INTO v_id
        FROM generate_series(1, n) u(o);
    v_lane := _lane(v_queue, type, v_priority);
    IF keys IS NULL AND ids IS NULL THEN
        PERFORM _enqueue(0, ARRAY[v_lane], ARRAY[v_queue], ARRAY[type], ARRAY[v_priority], v_id,
            (SELECT array_agg(_home(u.id) ORDER BY u.o) FROM unnest(v_id) WITH ORDINALITY u(id, o)), array_fill(v_lane, ARRAY[n]),
            array_fill(v_due.due, ARRAY[n]), array_fill(v_due.delay, ARRAY[n]), array_fill(max_attempts, ARRAY[n]),
            array_fill(v_timeout, ARRAY[n]), v_payload, array_fill(v_meta, ARRAY[n]));
        RETURN QUERY SELECT _id(u.id) FROM unnest(v_id) WITH ORDINALITY u(id, o) ORDER BY u.o;
    ELSE
        RETURN QUERY SELECT _id(e.id) FROM _enqueue_each(0, array_fill(v_queue, ARRAY[n]), array_fill(type, ARRAY[n]),
            array_fill(v_priority, ARRAY[n]), v_id, array_fill(v_due.due, ARRAY[n]), array_fill(v_due.delay, ARRAY[n]),
            array_fill(max_attempts, ARRAY[n]), array_fill(v_timeout, ARRAY[n]), v_payload, array_fill(v_meta, ARRAY[n]),
            array_fill(v_unique.mode, ARRAY[n]), keys, array_fill(v_unique.win, ARRAY[n])) e ORDER BY e.ord;
    END IF;
    PERFORM _wake(ARRAY[v_queue]);
END $f$;

-- Adds one job and answers its id.
CREATE FUNCTION {s}.enqueue(type text, payload json DEFAULT 'null', queue text DEFAULT 'default', priority int DEFAULT 0,
    delay interval DEFAULT NULL, run_at timestamptz DEFAULT NULL, max_attempts int DEFAULT NULL, timeout interval DEFAULT NULL,
    key text DEFAULT NULL, unique_for text DEFAULT NULL, id text DEFAULT NULL, meta json DEFAULT NULL)
RETURNS text LANGUAGE plpgsql SECURITY DEFINER SET search_path = {s}, pg_temp
SET standard_conforming_strings = on AS $f$
#variable_conflict use_variable
BEGIN
    RETURN (SELECT e FROM enqueue_many(type, ARRAY[payload], queue, priority, delay, run_at, max_attempts, timeout,
        CASE WHEN key IS NOT NULL THEN ARRAY[key] END, unique_for, CASE WHEN id IS NOT NULL THEN ARRAY[id] END, meta) e);
END $f$;

-- ---- steering ---------------------------------------------------------------------------------

-- cancelled: it waited, and never runs.  asked: it runs, and was asked to stop.  ended: too late.  unknown: no such job.
CREATE FUNCTION {s}.cancel(id text) RETURNS text LANGUAGE plpgsql SECURITY DEFINER SET search_path = {s}, pg_temp
SET standard_conforming_strings = on AS $f$
BEGIN
    RETURN (SELECT CASE WHEN c.verdict = 1 THEN 'unknown' WHEN c.verdict = 2 THEN 'ended' WHEN c.asked THEN 'asked'
        ELSE 'cancelled' END FROM _cancel(0, ARRAY[_key($1)]) c);
END $f$;

-- retried: it waits again, with a new budget.  refused: it has neither failed nor been cancelled.  taken: another job
-- holds its unique key.  unknown: no such job.
CREATE FUNCTION {s}.retry(id text) RETURNS text LANGUAGE plpgsql SECURITY DEFINER SET search_path = {s}, pg_temp
SET standard_conforming_strings = on AS $f$
DECLARE
    v record;
BEGIN
    SELECT r.verdict, r.queue INTO v FROM _retry(0, ARRAY[_key($1)]) r;
    IF v.verdict = 0 THEN
        PERFORM _wake(ARRAY[v.queue]);
    END IF;
    RETURN (ARRAY['retried', 'unknown', 'refused', 'taken'])[v.verdict + 1];
END $f$;

-- ---- views ------------------------------------------------------------------------------------

-- Bytes as text; NULL if they are no text.
CREATE FUNCTION {s}._text(bytea) RETURNS text LANGUAGE plpgsql IMMUTABLE STRICT AS $f$
BEGIN
    RETURN pg_catalog.convert_from($1, 'UTF8');
EXCEPTION WHEN data_exception OR program_limit_exceeded THEN
    RETURN NULL;
END $f$;

-- Bytes as jsonb, whatever they are: JSON as it is, other text as a string, the rest as {"base64": ...}.
CREATE FUNCTION {s}._jsonb(bytea) RETURNS jsonb LANGUAGE plpgsql IMMUTABLE STRICT AS $f$
BEGIN
    RETURN pg_catalog.convert_from($1, 'UTF8')::pg_catalog.jsonb;
EXCEPTION WHEN data_exception OR program_limit_exceeded OR statement_too_complex OR feature_not_supported THEN
    RETURN coalesce(pg_catalog.to_jsonb({s}._text($1)),
        pg_catalog.jsonb_build_object('base64', pg_catalog.translate(pg_catalog.encode($1, 'base64'), E'\n', '')));
END $f$;

-- Bytes in base64 if they are no text.
CREATE FUNCTION {s}._base64(bytea) RETURNS text LANGUAGE sql IMMUTABLE STRICT AS
    $f$ SELECT CASE WHEN {s}._text($1) IS NULL THEN pg_catalog.translate(pg_catalog.encode($1, 'base64'), E'\n', '') END $f$;

CREATE FUNCTION {s}._kind_name(int2) RETURNS text LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $f$
    SELECT nullif((ARRAY['', 'app_error', 'permanent', 'timeout', 'killed', 'exit', 'result_too_large', 'bad_result',
        'lease_expired', 'child_crashed', 'no_handler', 'cancelled', 'oom', 'caps', 'quarantined', 'expired', 'internal'])[$1::int4 + 1],
        '') $f$;

-- How an id is kept: what is indexed.
CREATE FUNCTION {s}.id_key(id text) RETURNS bytea LANGUAGE sql IMMUTABLE PARALLEL SAFE AS
    $f$ SELECT CASE WHEN id OPERATOR(pg_catalog.~) '^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$'
        THEN bytea E'\\x00' OPERATOR(pg_catalog.||) pg_catalog.decode(pg_catalog.replace(id, '-', ''), 'hex')
        ELSE bytea E'\\x01' OPERATOR(pg_catalog.||) pg_catalog.convert_to(id, 'UTF8') END $f$;

CREATE TYPE {s}._error AS (kind int2, message text, n int4); -- of a job: the last one

-- What the views need of a job's past, as functions: the planner would make a hundred steps of it, and the compiler machine
-- code of each of them.
CREATE FUNCTION {s}._last(p_id bytea, OUT state int2, OUT n int4, OUT fence int8, OUT started int8, OUT finished int8,
    OUT worker text, OUT policy int4, OUT result_ref text)
LANGUAGE plpgsql STABLE SECURITY DEFINER COST 20 SET search_path = {s}, pg_temp SET enable_seqscan = off
SET plan_cache_mode = force_generic_plan SET jit = off AS $f$
BEGIN
    SELECT d.state, d.n, d.fence, d.started, d.finished, d.worker, d.policy, d.result_ref
        INTO state, n, fence, started, finished, worker, policy, result_ref
        FROM ended d WHERE d.id = p_id AND d.slot IN (_home(p_id), 16) ORDER BY d.fence DESC, d.part DESC LIMIT 1;
END $f$;
CREATE FUNCTION {s}._first(p_id bytea) RETURNS int8
LANGUAGE plpgsql STABLE SECURITY DEFINER COST 20 SET search_path = {s}, pg_temp SET enable_seqscan = off
SET plan_cache_mode = force_generic_plan SET jit = off AS $f$
BEGIN
    RETURN (SELECT min(d.started) FROM ended d WHERE d.id = p_id AND d.slot IN (_home(p_id), 16));
END $f$;
CREATE FUNCTION {s}._error_of(p_id bytea) RETURNS {s}._error
LANGUAGE plpgsql STABLE SECURITY DEFINER COST 20 SET search_path = {s}, pg_temp SET enable_seqscan = off
SET plan_cache_mode = force_generic_plan SET jit = off AS $f$
BEGIN
    RETURN (SELECT ROW(d.kind, coalesce(d.message, CASE WHEN d.part = 1 THEN 'cancelled before it ran' END), d.n)::_error
        FROM ended d WHERE d.id = p_id AND d.slot IN (_home(p_id), 16) AND (d.kind > 0 OR d.state IN (5, 6))
        ORDER BY d.fence DESC, d.part DESC LIMIT 1);
END $f$;
CREATE FUNCTION {s}._result(p_id bytea, p_fence int8) RETURNS bytea
LANGUAGE plpgsql STABLE SECURITY DEFINER COST 20 SET search_path = {s}, pg_temp SET enable_seqscan = off
SET plan_cache_mode = force_generic_plan SET jit = off AS $f$
BEGIN
    RETURN (SELECT d.result FROM ended d WHERE d.id = p_id AND d.slot IN (_home(p_id), 16) AND d.fence = p_fence AND d.part = 0);
END $f$;
CREATE FUNCTION {s}._entry_of(p_id bytea) RETURNS SETOF {s}.entry
LANGUAGE plpgsql STABLE SECURITY DEFINER COST 20 ROWS 1 SET search_path = {s}, pg_temp SET enable_seqscan = off
SET plan_cache_mode = force_generic_plan SET jit = off AS $f$
BEGIN
    RETURN QUERY SELECT e.* FROM entry e WHERE e.id = p_id AND e.slot IN (_home(p_id), 16) LIMIT 1;
END $f$;

-- Jobs three times over: all of them; those that have not ended; those that ended badly.  The last two are found without a
-- look at the others.  It can be run again: that is how one that was lost is mended.
DO $views$
DECLARE
    v record;
BEGIN
    FOR v IN SELECT * FROM (VALUES ('job', '{s}.entry e'),
            ('live', '(SELECT l.id FROM {s}.lease l UNION ALL SELECT r.id FROM {s}.ready r) x CROSS JOIN LATERAL {s}._entry_of(x.id) e'),
            ('dead', '(SELECT DISTINCT x.id FROM {s}.ended x WHERE x.state IN (5, 6)) x CROSS JOIN LATERAL {s}._entry_of(x.id) e'))
            v(name, source) LOOP
        -- raw: times in microseconds, state as enum st_shown numbers it
        EXECUTE format($sql$
            CREATE OR REPLACE VIEW {s}.%I AS
            SELECT e.seq, e.id, n.type, n.queue, n.priority::int4 AS priority,
                CASE WHEN r.id IS NOT NULL THEN
                        CASE WHEN r.key <= {s}._us(statement_timestamp()) THEN 2 WHEN r.attempt > 0 THEN 3 ELSE 1 END
                    WHEN l.id IS NOT NULL THEN CASE WHEN l.started IS NULL THEN 4 ELSE 5 END
                    ELSE nullif(d.state, 1) + 2 END AS shown,
                coalesce(r.attempt, l.attempt, d.n, 0) AS attempt, coalesce(nullif(coalesce(r.fence, l.fence, d.fence), e.created), 0) AS fence,
                coalesce(e.max_attempts, (p.text::json ->> 'max_attempts')::int4, 3) AS max_attempts,
                coalesce(e.timeout, (p.text::json ->> 'timeout_us')::int8, 3600000000) AS timeout,
                e.created, coalesce(r.key, l.due, e.due) AS due, least(l.started, {s}._first(e.id)) AS first_started,
                coalesce(l.started, d.started) AS started, d.finished AS last_ended,
                CASE WHEN r.id IS NULL AND l.id IS NULL THEN d.finished END AS finished,
                CASE WHEN r.id IS NULL AND l.id IS NULL THEN d.worker ELSE g.worker END AS worker,
                l.until, g.lease, coalesce(l.cancel, false) AS cancel, l.progress, e.key, e.umode, e.payload, e.meta,
                CASE WHEN r.id IS NULL AND l.id IS NULL THEN {s}._result(e.id, d.fence) END AS result,
                CASE WHEN r.id IS NULL AND l.id IS NULL THEN d.result_ref END AS result_ref, {s}._error_of(e.id) AS error
            FROM %s
                CROSS JOIN LATERAL (SELECT n.type, n.queue, n.priority FROM {s}.lane n WHERE n.lane = e.lane LIMIT 1) n
                LEFT JOIN {s}.ready r ON r.id = e.id
                LEFT JOIN {s}.lease l ON l.id = e.id
                LEFT JOIN {s}.grp g ON g.gid = l.gid
                CROSS JOIN LATERAL {s}._last(e.id) d
                LEFT JOIN {s}.policy p ON p.id = coalesce(g.policy, d.policy)$sql$, '_' || v.name, v.source);
        EXECUTE format($sql$
            CREATE OR REPLACE VIEW {s}.%I AS
            SELECT {s}._id(j.id) AS id, j.type, j.queue, (ARRAY['scheduled', 'pending', 'retrying', 'claimed', 'running',
                    'succeeded', 'failed', 'cancelled'])[j.shown] AS state,
                j.priority, j.attempt, j.max_attempts, j.timeout * interval '1 microsecond' AS timeout,
                {s}._text(j.payload) AS payload, {s}._base64(j.payload) AS payload_base64,
                {s}._text(j.result) AS result, {s}._base64(j.result) AS result_base64, j.result_ref,
                {s}._kind_name((j.error).kind) AS error_kind, (j.error).message AS error_message,
                {s}._time(j.created) AS created_at, {s}._time(j.due) AS due_at, {s}._time(j.first_started) AS started_at,
                {s}._time(j.finished) AS finished_at, j.worker, j.fence, {s}._time(j.until) AS lease_until,
                j.cancel AS cancel_requested, {s}._text(j.progress) AS progress, {s}._text(j.meta) AS meta, j.key,
                (ARRAY['active', 'window', 'forever'])[j.umode] AS unique_for, j.seq, j.id AS id_key
            FROM {s}.%I j%s$sql$, v.name, '_' || v.name, CASE WHEN v.name = 'dead' THEN ' WHERE j.shown IN (7, 8)' ELSE '' END);
    END LOOP;
END $views$;

-- The job with this id: an index lookup however many there are.
CREATE FUNCTION {s}.get(id text) RETURNS SETOF {s}.job LANGUAGE sql STABLE AS
    $f$ SELECT * FROM {s}.job j WHERE j.id_key OPERATOR(pg_catalog.=) {s}.id_key($1) $f$;

-- The last n that were enqueued, newest first.  Numbers are used up by what is rolled back too: it looks further and further
-- back until it has n of them.
CREATE FUNCTION {s}.recent(n int DEFAULT 100) RETURNS SETOF {s}.job LANGUAGE plpgsql STABLE
SET search_path = pg_catalog, pg_temp SET jit = off SET enable_seqscan = off AS $f$
DECLARE
    v_hi int8 := (SELECT s.last_value FROM {s}.entry_seq s);
    v_lo int8;
    v_width int8 := $1;
    v_left int8 := $1;
    v_n int8;
BEGIN
    WHILE v_left > 0 AND v_hi > 0 LOOP
        v_lo := greatest(v_hi - v_width, 0);
        RETURN QUERY SELECT j.* FROM {s}.job j WHERE j.seq > v_lo AND j.seq <= v_hi ORDER BY j.seq DESC LIMIT v_left;
        GET DIAGNOSTICS v_n = ROW_COUNT;
        v_left := v_left - v_n;
        v_hi := v_lo;
        v_width := v_width * 4;
    END LOOP;
END $f$;

-- Every queue that has or had jobs or is paused.  A queue whose parent is paused is not itself paused, but rests too.
CREATE VIEW {s}.queue AS
WITH n AS (SELECT DISTINCT n.lane, n.queue FROM {s}.lane n),
t AS (SELECT t.lane, sum(t.waiting)::int8 AS waiting, sum(t.succeeded)::int8 AS succeeded, sum(t.failed)::int8 AS failed,
        sum(t.cancelled)::int8 AS cancelled FROM {s}.tally t GROUP BY t.lane),
h AS (SELECT l.lane, count(*) FILTER (WHERE l.started IS NULL) AS claimed, count(l.started) AS running
    FROM {s}.lease l GROUP BY l.lane),
w AS (SELECT t.lane, sum(f.scheduled)::int8 AS scheduled, sum(f.retrying)::int8 AS retrying, min(b.key) AS oldest
    FROM (SELECT {s}._us(statement_timestamp()) AS now) q CROSS JOIN t CROSS JOIN (VALUES (0), (1)) o(o)
        CROSS JOIN LATERAL (SELECT count(*) FILTER (WHERE r.attempt = 0) AS scheduled, count(*) FILTER (WHERE r.attempt > 0) AS retrying
            FROM {s}.ready r WHERE r.lane = t.lane + o.o AND r.key > q.now) f
        LEFT JOIN LATERAL (SELECT r.key FROM {s}.ready r WHERE r.lane = t.lane + o.o AND r.key <= q.now
            ORDER BY r.lane, r.key LIMIT 1) b ON true
    WHERE t.waiting > 0 GROUP BY t.lane)
SELECT x.queue, p.queue IS NOT NULL AS paused, coalesce(sum(w.scheduled), 0)::int8 AS scheduled,
    (coalesce(sum(t.waiting), 0) - coalesce(sum(w.scheduled + w.retrying), 0))::int8 AS pending,
    coalesce(sum(w.retrying), 0)::int8 AS retrying, coalesce(sum(h.claimed), 0)::int8 AS claimed,
    coalesce(sum(h.running), 0)::int8 AS running, coalesce(sum(t.succeeded), 0)::int8 AS succeeded,
    coalesce(sum(t.failed), 0)::int8 AS failed, coalesce(sum(t.cancelled), 0)::int8 AS cancelled,
    {s}._time(min(w.oldest)) AS oldest_due
FROM (SELECT n.queue FROM n UNION SELECT p.queue FROM {s}.paused p) x
    LEFT JOIN n ON n.queue = x.queue LEFT JOIN t ON t.lane = n.lane LEFT JOIN h ON h.lane = n.lane
    LEFT JOIN w ON w.lane = n.lane LEFT JOIN {s}.paused p ON p.queue = x.queue
GROUP BY x.queue, p.queue;

-- ---- in the words of others: read only ----------------------------------------------------------

-- Reproq's.  Its id is a number: the order of enqueueing.
CREATE VIEW {s}.task_runs AS
SELECT j.seq AS id, CASE WHEN j.key ~ '^[0-9a-f]{64}$' THEN j.key END AS spec_hash, j.queue AS queue_name,
    (ARRAY['PENDING', 'PENDING', 'RETRYING', 'RUNNING', 'RUNNING', 'SUCCESSFUL', 'FAILED', 'CANCELLED'])[j.shown] AS status,
    j.priority, {s}._time(j.due) AS run_after, {s}._time(j.until) AS leased_until, j.worker AS worker_id,
    {s}._jsonb(j.payload) AS payload_json, {s}._jsonb(j.result) AS result_json,
    CASE WHEN (j.error).kind IS NOT NULL THEN jsonb_build_object('kind', {s}._kind_name((j.error).kind),
        'message', (j.error).message, 'attempt', (j.error).n) END AS error_json,
    j.attempt AS attempt_count, j.max_attempts, {s}._time(j.created) AS created_at,
    {s}._time(greatest(j.created, j.started, j.last_ended)) AS updated_at, {s}._time(j.started) AS started_at,
    {s}._time(j.finished) AS completed_at, {s}._id(j.id) AS job_id, j.id AS id_key
FROM {s}._job j;

-- The Task Orchestrator's.  It has no word for cancelled.
CREATE VIEW {s}.tasks AS
SELECT {s}._id(j.id) AS id, j.type, {s}._jsonb(j.payload) AS payload,
    (ARRAY['pending', 'pending', 'pending', 'claimed', 'running', 'completed', 'dead_letter', 'cancelled'])[j.shown] AS status,
    j.priority, j.key AS idempotency_key, j.worker AS worker_id, {s}._time(j.created) AS created_at,
    CASE WHEN j.shown > 3 THEN {s}._time(j.started) END AS claimed_at, {s}._time(j.started) AS started_at,
    {s}._time(j.finished) AS completed_at, {s}._time(greatest(j.created, j.started, j.last_ended)) AS updated_at,
    j.attempt AS attempts, j.max_attempts AS max_retries, (j.error).message AS last_error,
    CASE WHEN j.shown IN (1, 3) THEN {s}._time(j.due) END AS next_retry_at, j.id AS id_key
FROM {s}._job j;

CREATE VIEW {s}.workers AS
SELECT w.id, w.name, w.host AS hostname, w.pid, w.slots AS pool_size, w.running, w.queues::json AS queues, w.types::json AS types,
    w.healthy, w.quiet, w.note, {s}._time(w.started) AS started_at, {s}._time(w.beat) AS last_heartbeat,
    l.worker IS NOT NULL AS is_leader, {s}._time(l.until) AS leader_until, l.epoch AS leader_epoch
FROM {s}.worker w LEFT JOIN {s}.leader l ON l.worker = w.id AND l.until > {s}._us(statement_timestamp());

-- The leasing engine's.
CREATE VIEW {s}.model_runs AS
SELECT {s}._id(j.id) AS id,
    (ARRAY['PENDING', 'PENDING', 'PENDING', 'RUNNING', 'RUNNING', 'SUCCEEDED', 'FAILED', 'CANCELLED'])[j.shown] AS status,
    {s}._jsonb(j.payload) AS parameters, encode(sha256(j.payload), 'hex') AS payload_hash, {s}._time(j.created) AS created_at,
    {s}._time(j.first_started) AS started_at, {s}._time(j.finished) AS finished_at, j.attempt AS attempt_count,
    (j.error).message AS last_error, j.result_ref, CASE WHEN j.until IS NOT NULL THEN j.worker END AS lease_owner,
    {s}._time(j.until) AS lease_expires_at, {s}._time(j.until - j.lease) AS heartbeat_at, j.id AS id_key
FROM {s}._job j;

-- Whoever is to call something here is told so by name (postgres_roles.sql).
REVOKE ALL ON ALL FUNCTIONS IN SCHEMA {s} FROM PUBLIC;
