-- SPDX-License-Identifier: Apache-2.0
--
-- postgres_1.sql - the PostgreSQL store, schema version 1: its tables, and the functions that do all the moves.
--
--     entry   a job as it was enqueued; written once        ready   jobs that wait; insert and delete only
--     lease   jobs that are held, one row each              ended   one row per ended attempt; written once
--
-- A job waits if it has a row in ready, is held if it has one in lease, and is else what its latest row in ended says.
-- Each move is one transaction, so one statement sees each job in one place.
--
-- Times are microseconds since 1970 by the server's clock; p_now 0 means that clock (tests give another).
-- An id is kept as bytes: 0 and the 16 bytes of a UUID, or 1 and the text.
-- entry and ended lie in a ring of 16 slots by the time inside the id (37 hours each), emptied by TRUNCATE; slot 16 holds
-- what must stay longer and ids that carry no time.
-- A lane is a digest of (queue, type, priority), even.  The odd one beside it holds rows whose due time is older than the
-- moment they were put there.  A row of an even lane has a key that is not before the clock, read after its transaction had
-- its number: that is what lets a claimer remember how far it has come (see postgres_mark.c).

-- ---- tables -----------------------------------------------------------------------------------

CREATE SEQUENCE {s}.entry_seq;
CREATE TABLE {s}.entry(
    lane int8 NOT NULL,
    seq int8 NOT NULL DEFAULT nextval('{s}.entry_seq'),
    created int8 NOT NULL,
    due int8 NOT NULL,
    timeout int8, -- the job's own; NULL = by type
    max_attempts int4,
    slot int2 NOT NULL,
    umode int2 NOT NULL, -- 0 none 1 active 2 window 3 forever
    id bytea NOT NULL,
    key text COLLATE "C",
    payload bytea,
    meta bytea,
    PRIMARY KEY (id, slot)
) PARTITION BY LIST (slot);

-- outcome: 0 succeeded 1 retry 2 failed 3 cancelled 4 released 5 lease_expired
-- state: what became of the job: 1 pending 4 succeeded 5 failed 6 cancelled
-- part: 0 the end of attempt `fence`; 1 the job was cancelled while it waited after that attempt
CREATE TABLE {s}.ended(
    fence int8 NOT NULL,
    finished int8 NOT NULL,
    started int8,
    max_rss int8,
    n int4 NOT NULL, -- the attempt's number
    policy int4,
    exit_code int4,
    signal int4,
    slot int2 NOT NULL,
    part int2 NOT NULL,
    outcome int2 NOT NULL,
    state int2 NOT NULL,
    kind int2 NOT NULL,
    id bytea NOT NULL,
    worker text COLLATE "C",
    message text,
    log text,
    result_ref text,
    log_tail bytea,
    result bytea,
    PRIMARY KEY (id, fence, part, slot)
) PARTITION BY LIST (slot);

DO $do$
BEGIN
    FOR i IN 0..16 LOOP
        EXECUTE format('CREATE TABLE {s}.entry_%s PARTITION OF {s}.entry FOR VALUES IN (%s)'
            ' WITH (autovacuum_vacuum_cost_delay = 0)', i, i);
        EXECUTE format('CREATE TABLE {s}.ended_%s PARTITION OF {s}.ended FOR VALUES IN (%s)'
            ' WITH (autovacuum_vacuum_cost_delay = 0)', i, i);
    END LOOP;
END $do$;
-- newest first, and what is too old, cost next to nothing to keep: both tables are appended to
CREATE INDEX entry_newest ON {s}.entry USING brin (seq) WITH (pages_per_range = 32, autosummarize = on);
CREATE INDEX ended_finished ON {s}.ended USING brin (finished) WITH (pages_per_range = 32, autosummarize = on);
-- the dead letter, and retention of what is not thrown away by the slot
CREATE INDEX ended_dead ON {s}.ended(finished) WHERE state IN (5, 6);
CREATE INDEX entry_key ON {s}.entry(key) WHERE key IS NOT NULL;

-- Jobs that wait, in the order of service.  Never updated: a claim deletes by ctid.
CREATE TABLE {s}.ready(
    lane int8 NOT NULL,
    key int8 NOT NULL, -- due time
    fence int8 NOT NULL, -- of the last claim; before the first the moment it was added, so that an id that is used again goes on
    attempt int4 NOT NULL, -- charged so far
    slot int2 NOT NULL,
    skips int2 NOT NULL, -- times in a row it was lost before it had started
    keyed bool NOT NULL, -- it holds a unique key until it ends
    id bytea NOT NULL,
    at tid NOT NULL DEFAULT '(4294967295,0)', -- where its entry was put, if that is known; it may be elsewhere by now
    PRIMARY KEY (lane, key, id)
) WITH (autovacuum_vacuum_threshold = 20000, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_cost_delay = 0,
    autovacuum_analyze_threshold = 2000000000, vacuum_truncate = off);
CREATE UNIQUE INDEX ready_id ON {s}.ready(id);

-- Jobs that are held.  cancel: its worker was asked to stop it.
CREATE TABLE {s}.lease(
    gid int8 NOT NULL,
    lane int8 NOT NULL, -- even
    fence int8 NOT NULL,
    until int8 NOT NULL,
    due int8 NOT NULL,
    started int8, -- NULL = prefetched
    attempt int4 NOT NULL,
    slot int2 NOT NULL,
    skips int2 NOT NULL,
    keyed bool NOT NULL,
    cancel bool NOT NULL DEFAULT false,
    id bytea PRIMARY KEY,
    progress bytea
) WITH (fillfactor = 90, autovacuum_vacuum_threshold = 20000, autovacuum_vacuum_scale_factor = 0,
    autovacuum_vacuum_cost_delay = 0, autovacuum_analyze_threshold = 2000000000, vacuum_truncate = off);
CREATE INDEX lease_cancel ON {s}.lease(id) WHERE cancel;

-- What was claimed at once, with one policy.  look_at: no lease of it ends before; a reaper then looks, and moves it on.
CREATE SEQUENCE {s}.grp_seq;
CREATE TABLE {s}.grp(
    gid int8 PRIMARY KEY,
    look_at int8 NOT NULL,
    lease int8 NOT NULL, -- how long a lease is
    policy int4 NOT NULL,
    n int4 NOT NULL,
    worker text COLLATE "C" NOT NULL,
    ids bytea[] NOT NULL
) WITH (toast_tuple_target = 8160, autovacuum_vacuum_threshold = 5000, autovacuum_vacuum_scale_factor = 0,
    autovacuum_vacuum_cost_delay = 0, autovacuum_analyze_threshold = 2000000000, vacuum_truncate = off);
ALTER TABLE {s}.grp ALTER ids SET STORAGE EXTERNAL;
CREATE INDEX grp_look ON {s}.grp(look_at);
CREATE INDEX grp_worker ON {s}.grp(worker);

-- Effective retry policies, as JSON; written at claim so that anyone can reap.
CREATE TABLE {s}.policy(id int4 GENERATED ALWAYS AS IDENTITY PRIMARY KEY, text text COLLATE "C" NOT NULL UNIQUE);

-- The number of a policy.
CREATE FUNCTION {s}._policy(p_text text) RETURNS int4 LANGUAGE plpgsql SET search_path = {s}, pg_temp AS $f$
DECLARE
    v_id int4;
BEGIN
    LOOP
        SELECT p.id INTO v_id FROM policy p WHERE p.text = p_text;
        EXIT WHEN FOUND;
        INSERT INTO policy(text) VALUES (p_text) ON CONFLICT DO NOTHING;
    END LOOP;
    RETURN v_id;
END $f$;

-- Which lanes there are.  Written when a lane is not seen, without a unique key, so that no producer waits for another's
-- transaction: a lane may be there twice.
CREATE TABLE {s}.lane(
    n int8 GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    lane int8 NOT NULL,
    priority int2 NOT NULL,
    queue text COLLATE "C" NOT NULL,
    type text COLLATE "C" NOT NULL
);
CREATE INDEX lane_lane ON {s}.lane(lane);

-- Changes of the counts of what waits and what has ended; added up by the leader.  What is held is counted in lease.
CREATE TABLE {s}.tally(
    lane int8 NOT NULL,
    waiting int8 NOT NULL,
    succeeded int8 NOT NULL DEFAULT 0,
    failed int8 NOT NULL DEFAULT 0,
    cancelled int8 NOT NULL DEFAULT 0
) WITH (autovacuum_vacuum_threshold = 5000, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_cost_delay = 0,
    autovacuum_analyze_threshold = 2000000000, vacuum_truncate = off);
ALTER TABLE {s}.tally REPLICA IDENTITY FULL; -- it has no key, and may be in a publication FOR ALL TABLES

-- mode as umode of entry
CREATE TABLE {s}.ukey(
    until int8,
    mode int2 NOT NULL,
    type text COLLATE "C" NOT NULL,
    key text COLLATE "C" NOT NULL,
    id bytea NOT NULL,
    PRIMARY KEY (type, key)
);
CREATE INDEX ukey_id ON {s}.ukey(id);
CREATE INDEX ukey_until ON {s}.ukey(until) WHERE until IS NOT NULL;

CREATE TABLE {s}.paused(queue text COLLATE "C" PRIMARY KEY, since int8 NOT NULL);

CREATE TABLE {s}.worker(
    id text COLLATE "C" PRIMARY KEY,
    name text,
    host text,
    boot_id text,
    pid int4,
    pid_start int8,
    slots int4,
    running int4,
    queues text,
    types text,
    healthy bool,
    quiet bool,
    note text,
    started int8,
    beat int8 NOT NULL
) WITH (fillfactor = 50);

CREATE TABLE {s}.leader(
    one int2 PRIMARY KEY CHECK (one = 1),
    epoch int8 NOT NULL,
    worker text COLLATE "C",
    until int8 NOT NULL
) WITH (fillfactor = 10);
INSERT INTO {s}.leader VALUES (1, 0, NULL, 0);

-- ---- small things -----------------------------------------------------------------------------

-- Those in SQL have no search_path of their own, which would keep the planner from putting their bodies in the place of the
-- call: whatever is not found with these very types in pg_catalog is named with its schema (OPERATOR binds weakest), or an
-- operator that somebody else has put on the caller's search_path would run with the caller's rights.

CREATE FUNCTION {s}._us(timestamptz) RETURNS int8 LANGUAGE sql IMMUTABLE PARALLEL SAFE AS
    $f$ SELECT (extract(epoch FROM $1) OPERATOR(pg_catalog.*) 1000000)::int8 $f$;
CREATE FUNCTION {s}._time(int8) RETURNS timestamptz LANGUAGE sql IMMUTABLE PARALLEL SAFE AS
    $f$ SELECT timestamptz 'epoch' OPERATOR(pg_catalog.+) ($1::float8 OPERATOR(pg_catalog.*) interval '1 microsecond') $f$;

CREATE FUNCTION {s}._key(id text) RETURNS bytea LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $f$
    SELECT CASE WHEN id OPERATOR(pg_catalog.~) '^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$'
        THEN bytea E'\\x00' OPERATOR(pg_catalog.||) pg_catalog.decode(pg_catalog.replace(id, '-', ''), 'hex')
        ELSE bytea E'\\x01' OPERATOR(pg_catalog.||) pg_catalog.convert_to(id, 'UTF8') END $f$;
CREATE FUNCTION {s}._id(key bytea) RETURNS text LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $f$
    SELECT CASE WHEN pg_catalog.get_byte(key, 0) OPERATOR(pg_catalog.=) 0
        THEN pg_catalog.encode(pg_catalog.substr(key, 2), 'hex')::uuid::text
        ELSE pg_catalog.convert_from(pg_catalog.substr(key, 2), 'UTF8') END $f$;

-- The slot an id belongs to.
CREATE FUNCTION {s}._home(key bytea) RETURNS int2 LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $f$
    SELECT CASE WHEN get_byte(key, 0) = 0 AND get_byte(key, 7) >> 4 = 7
        THEN (((get_byte(key, 1)::int8 << 40) + (get_byte(key, 2)::int8 << 32) + (get_byte(key, 3)::int8 << 24)
            + (get_byte(key, 4)::int8 << 16) + (get_byte(key, 5)::int8 << 8) + get_byte(key, 6)) / 133200000 % 16::int8)::int2
        ELSE 16::int2 END $f$;

CREATE FUNCTION {s}._lane(queue text, type text, priority int4) RETURNS int8 LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $f$
    SELECT ('x' || pg_catalog.encode(pg_catalog.substr(pg_catalog.sha256(pg_catalog.convert_to(queue || E'\n' || type || E'\n'
        || priority::text, 'UTF8')), 1, 8), 'hex'))::bit(64)::int8 & (-2)::int8 $f$;

CREATE FUNCTION {s}._parent(queue text) RETURNS text LANGUAGE sql IMMUTABLE PARALLEL SAFE AS
    $f$ SELECT pg_catalog.split_part(queue, '.', 1) $f$;

-- A worker that sleeps holds this lock, shared, for each queue it serves ('*' = all).
CREATE FUNCTION {s}._sleeper(queue text) RETURNS int8 LANGUAGE sql IMMUTABLE PARALLEL SAFE AS
    $f$ SELECT pg_catalog.hashtextextended('{s}:' || queue, 1937076340::int8) $f$;

-- Who claims from a lane holds a lock under this number (see _claim); other schemas of the database have others.
CREATE FUNCTION {s}._gate(lane int8) RETURNS int4 LANGUAGE sql IMMUTABLE PARALLEL SAFE AS
    $f$ SELECT pg_catalog.hashtext('{s}:' || lane) $f$;

-- Tells those who sleep that there is work in these queues; nothing at all when nobody does.
-- Whoever gets their lock gives it back at once, since others may want to sleep while this transaction is open: by ending a block
-- that has changed nothing, so that a statement that is cancelled in between keeps no lock either.  p_alone: nothing else happens
-- in this transaction, which ends at once and gives back all there is.
CREATE FUNCTION {s}._wake(p_queues text[], p_alone bool DEFAULT false) RETURNS void
LANGUAGE plpgsql SET search_path = {s}, pg_temp AS $f$
DECLARE
    q text;
    n int8;
    v_keys int8[];
    v_held int8[];
BEGIN
    FOREACH q IN ARRAY coalesce(p_queues, '{}') LOOP
        v_keys := CASE WHEN q LIKE '%.%' THEN ARRAY[_sleeper(q), _sleeper(_parent(q)), _sleeper('*')] ELSE ARRAY[_sleeper(q), _sleeper('*')] END;
        IF p_alone THEN
            v_held := ARRAY(SELECT k FROM unnest(v_keys) k WHERE NOT pg_try_advisory_xact_lock(k));
        ELSE
            BEGIN
                v_held := ARRAY(SELECT k FROM unnest(v_keys) k WHERE NOT pg_try_advisory_xact_lock(k));
                RAISE EXCEPTION USING ERRCODE = 'ST000';
            EXCEPTION WHEN SQLSTATE 'ST000' THEN
                NULL;
            END;
        END IF;
        FOREACH n IN ARRAY v_held LOOP
            IF EXISTS (SELECT FROM pg_locks l WHERE l.locktype = 'advisory' AND l.mode = 'ShareLock' AND l.objsubid = 1
                    AND l.classid = (n >> 32 & 4294967295)::oid AND l.objid = (n & 4294967295)::oid
                    AND l.database = (SELECT d.oid FROM pg_database d WHERE d.datname = current_database())) THEN
                -- a sleeper, and not just another who asks the same at this moment
                PERFORM pg_notify('{s_plain}', 'w ' || q);
                EXIT;
            END IF;
        END LOOP;
    END LOOP;
END $f$;

-- What was found to be there already is told as if this transaction had written it, so it must be as safe.  Where commits wait
-- for a standby, somebody else's may have been cut short while it waited: a record of our own makes this one wait for both.
CREATE FUNCTION {s}._vouch() RETURNS void LANGUAGE plpgsql SET search_path = {s}, pg_temp AS $f$
BEGIN
    IF current_setting('synchronous_standby_names') <> '' THEN
        PERFORM pg_logical_emit_message(true, 'stint', '');
    END IF;
END $f$;

-- ---- enqueue ----------------------------------------------------------------------------------

-- p_lanes and beside it: the distinct lanes of the jobs that follow.
CREATE FUNCTION {s}._lanes_note(p_lanes int8[], p_queues text[], p_types text[], p_priorities int4[]) RETURNS void
LANGUAGE plpgsql SET search_path = {s}, pg_temp SET enable_seqscan = off SET plan_cache_mode = force_generic_plan AS $f$
BEGIN
    INSERT INTO lane(lane, queue, type, priority)
        SELECT u.* FROM unnest(p_lanes, p_queues, p_types, p_priorities::int2[]) u(lane, queue, type, priority)
        WHERE NOT EXISTS (SELECT FROM lane l WHERE l.lane = u.lane LIMIT 1);
END $f$;

-- Jobs without unique keys and with ids that are not there yet: the fast way.  An id that is taken is error 23505.
-- p_due 0: p_delay from now.  What was due a moment ago (run_at => now()) is as if it were due at this moment: odd lanes have
-- no marks, so they are for what is late.
CREATE FUNCTION {s}._enqueue(p_now int8, p_lanes int8[], p_queues text[], p_types text[], p_priorities int4[],
    p_id bytea[], p_slot int2[], p_lane int8[], p_due int8[], p_delay int8[], p_max int4[], p_timeout int8[],
    p_payload bytea[], p_meta bytea[]) RETURNS void
LANGUAGE plpgsql SET search_path = {s}, pg_temp SET plan_cache_mode = force_generic_plan SET jit = off AS $f$
DECLARE
    v_clock int8;
    v_now int8;
    v_soon int8;
    v_fence int8;
    v_one int2;
BEGIN
    IF EXISTS (SELECT FROM unnest(p_lanes) u(lane) WHERE (SELECT 1 FROM lane l WHERE l.lane = u.lane LIMIT 1) IS NULL) THEN
        PERFORM _lanes_note(p_lanes, p_queues, p_types, p_priorities);
    END IF;
    PERFORM pg_current_xact_id(); -- before the clock is read
    v_clock := _us(clock_timestamp());
    v_now := coalesce(nullif(p_now, 0), v_clock);
    v_soon := least(v_clock - 2000000, _us(now()));
    v_fence := CASE p_now WHEN 0 THEN v_now ELSE 0 END;
    v_one := CASE WHEN p_slot[1] = ALL (p_slot) THEN p_slot[1] END;
    --< of all slots
    WITH e AS (INSERT INTO entry(lane, created, due, timeout, max_attempts, slot, umode, id, payload, meta)
        SELECT lane, v_now, CASE WHEN due0 > 0 THEN due0 ELSE v_now + delay END, timeout, max_attempts, slot, 0, id, payload, meta
        FROM unnest(p_id, p_slot, p_lane, p_due, p_delay, p_max, p_timeout, p_payload, p_meta)
            u(id, slot, lane, due0, delay, max_attempts, timeout, payload, meta)
        RETURNING lane, due, slot, id, ctid AS at),
    t AS (INSERT INTO tally(lane, waiting) SELECT lane, count(*) FROM e GROUP BY lane)
    INSERT INTO ready(lane, key, fence, attempt, slot, skips, keyed, id, at)
        SELECT CASE WHEN due >= v_soon THEN lane ELSE lane + 1 END, CASE WHEN due >= v_soon THEN greatest(due, v_clock) ELSE due END,
            v_fence, 0, slot, 0, false, id, at FROM e;
    -->
END $f$;

-- One job, whatever it needs.  The id of the job that stands for it, and whether that is another one.
-- ST002: the id is taken by another job.
CREATE FUNCTION {s}._enqueue_one(p_now int8, p_queue text, p_type text, p_priority int4, p_id bytea, p_due int8,
    p_delay int8, p_max int4, p_timeout int8, p_payload bytea, p_meta bytea, p_umode int2, p_key text, p_window int8,
    OUT id bytea, OUT duplicate bool)
LANGUAGE plpgsql SET search_path = {s}, pg_temp SET enable_seqscan = off SET plan_cache_mode = force_generic_plan SET jit = off AS $f$
DECLARE
    v_clock int8;
    v_now int8;
    v_due int8;
    v_soon int8;
    v_lane int8 := _lane(p_queue, p_type, p_priority);
    v_home int2 := _home(p_id);
    v_ours bool := false; -- the key
    v_at tid;
    e record;
    k record;
BEGIN
    PERFORM pg_current_xact_id();
    v_clock := _us(clock_timestamp());
    v_now := coalesce(nullif(p_now, 0), v_clock);
    v_due := CASE WHEN p_due > 0 THEN p_due ELSE v_now + p_delay END;
    v_soon := least(v_clock - 2000000, _us(now()));
    id := p_id;
    duplicate := false;
    LOOP
        SELECT x.lane, x.payload INTO e FROM entry x WHERE x.id = p_id AND x.slot IN (v_home, 16) LIMIT 1;
        IF FOUND THEN
            IF e.payload IS NOT DISTINCT FROM p_payload
                AND EXISTS (SELECT FROM lane l WHERE l.lane = e.lane AND l.queue = p_queue AND l.type = p_type) THEN
                PERFORM _vouch();
                RETURN;
            END IF;
            RAISE EXCEPTION 'the id % is taken by another job', _id(p_id) USING ERRCODE = 'ST002';
        END IF;
        IF p_umode > 0 THEN
            INSERT INTO ukey(type, key, id, mode, until)
                VALUES (p_type, p_key, p_id, p_umode, CASE WHEN p_umode = 2 THEN v_now + p_window END)
                ON CONFLICT (type, key) DO NOTHING;
            v_ours := v_ours OR FOUND;
            IF NOT v_ours THEN
                SELECT x.id, x.mode, x.until INTO k FROM ukey x WHERE x.type = p_type AND x.key = p_key;
                CONTINUE WHEN NOT FOUND;
                -- a call before this one, that was not heard, has just added it
                CONTINUE WHEN k.id = p_id AND EXISTS (SELECT FROM entry x WHERE x.id = p_id AND x.slot IN (v_home, 16));
                IF k.mode <> 2 OR k.until > v_now THEN -- held, if only by a job of this id that was removed long ago
                    id := k.id;
                    duplicate := true;
                    PERFORM _vouch();
                    RETURN;
                END IF;
                UPDATE ukey x SET id = p_id, mode = p_umode, until = CASE WHEN p_umode = 2 THEN v_now + p_window END
                    WHERE x.type = p_type AND x.key = p_key AND x.id = k.id AND x.mode = 2 AND x.until = k.until;
                CONTINUE WHEN NOT FOUND;
                v_ours := true;
            END IF;
        END IF;
        PERFORM _lanes_note(ARRAY[v_lane], ARRAY[p_queue], ARRAY[p_type], ARRAY[p_priority]);
        INSERT INTO entry(lane, created, due, timeout, max_attempts, slot, umode, id, key, payload, meta)
            VALUES (v_lane, v_now, v_due, p_timeout, p_max, v_home, p_umode, p_id, p_key, p_payload, p_meta)
            ON CONFLICT ON CONSTRAINT entry_pkey DO NOTHING RETURNING ctid INTO v_at;
        EXIT WHEN FOUND; -- else somebody else has just added this id
    END LOOP;
    INSERT INTO ready(lane, key, fence, attempt, slot, skips, keyed, id, at)
        VALUES (CASE WHEN v_due >= v_soon THEN v_lane ELSE v_lane + 1 END,
            CASE WHEN v_due >= v_soon THEN greatest(v_due, v_clock) ELSE v_due END, CASE p_now WHEN 0 THEN v_now ELSE 0 END, 0, v_home, 0, p_umode = 1, p_id, v_at);
    INSERT INTO tally(lane, waiting) VALUES (v_lane, 1);
END $f$;

-- Many of those, each with its place in the answer.  In the order of their keys and ids, so that two batches do not wait for
-- each other in a circle.
CREATE FUNCTION {s}._enqueue_each(p_now int8, p_queue text[], p_type text[], p_priority int4[], p_id bytea[], p_due int8[],
    p_delay int8[], p_max int4[], p_timeout int8[], p_payload bytea[], p_meta bytea[], p_umode int2[], p_key text[],
    p_window int8[]) RETURNS TABLE (ord int8, id bytea, duplicate bool)
LANGUAGE plpgsql SET search_path = {s}, pg_temp AS $f$
#variable_conflict use_column
DECLARE
    u record;
BEGIN
    FOR u IN SELECT * FROM unnest(p_queue, p_type, p_priority, p_id, p_due, p_delay, p_max, p_timeout, p_payload, p_meta,
            p_umode, p_key, p_window) WITH ORDINALITY
            u(queue, type, priority, id, due, delay, max_attempts, timeout, payload, meta, umode, key, win, ord)
            ORDER BY u.type, u.key, u.id, u.ord LOOP
        ord := u.ord;
        SELECT o.id, o.duplicate INTO id, duplicate FROM _enqueue_one(p_now, u.queue, u.type, u.priority, u.id, u.due,
            u.delay, u.max_attempts, u.timeout, u.payload, u.meta, u.umode, u.key, u.win) o;
        RETURN NEXT;
    END LOOP;
END $f$;

-- ---- claim ------------------------------------------------------------------------------------

-- A turn at a lane's first gate: 0 we have it, -1 one or two are waiting for it already, 1 it takes its time: pass by.
CREATE FUNCTION {s}._turn(p_lane int8) RETURNS int4 LANGUAGE plpgsql SET search_path = {s}, pg_temp AS $f$
BEGIN
    IF pg_try_advisory_xact_lock(_gate(p_lane), 0) THEN
        RETURN 0;
    ELSIF NOT (pg_try_advisory_xact_lock(_gate(p_lane), -1) OR pg_try_advisory_xact_lock(_gate(p_lane), -2)) THEN
        RETURN -1;
    END IF;
    BEGIN
        PERFORM pg_advisory_xact_lock(_gate(p_lane), 0);
        RETURN 0;
    EXCEPTION WHEN lock_not_available THEN
        RETURN 1;
    END;
END $f$;

-- The lanes come in the order of service, those of one class side by side: of one class the order is by key and id,
-- whatever the lane.  p_from, p_from_id: where to begin in each lane.  p_rule: which of p_lease, p_policy, p_max counts for it.
-- The first p_run jobs run at once.
-- Who claims from lanes has a gate of each; gates are tried, never waited for.  Who has the first ones need not lock rows before it
-- takes them.  The others begin behind what those before them are likely to take: a row that is locked costs more than many that are
-- passed.  Who has different gates of its lanes, since others serve some of them too, locks rows and passes by what is locked.
-- p_defer: where one would have to pass 250 and more, one or two wait for the first gate, and the others are sent away, with the
-- row -1: one who takes much after the other, each with nothing to pass, is faster than all of them together.
-- A row that somebody else is at this moment (an open cancel) then makes it fail with 55P03: repeat it with p_careful.
-- A row of a job that is held already (see _strays) makes it fail with 23505, and is passed over with p_careful.  An entry that was
-- moved since (VACUUM FULL, the ring) makes it fail with 55P03 too: with p_careful all are looked for by their ids.
-- Besides the jobs it answers what a claimer must know to remember how far it has come:
--     ord -2  per lane the first row that was there from the given place on, locked or not; key NULL: it was not looked at
--     ord -3  the last row: lane, attempt: the last of the lanes there are, and how many; started: now(); until: when the server was
--             started; fence: this transaction; rule: so many of p_lane were looked at; payload: the snapshot before all looks;
--             key, if there was room left: when the next job of these lanes will be due
CREATE FUNCTION {s}._claim(p_now int8, p_worker text, p_n int4, p_run int4, p_lane int8[], p_class int4[], p_rule int4[],
    p_from int8[], p_from_id bytea[], p_lease int8[], p_policy int4[], p_max int4[], p_careful bool, p_defer bool)
RETURNS TABLE (ord int4, lane int8, key int8, fence int8, attempt int4, rule int4, started int8, until int8, created int8,
    max_attempts int4, timeout int8, id bytea, payload bytea, meta bytea)
LANGUAGE plpgsql SET search_path = {s}, pg_temp SET enable_seqscan = off SET enable_bitmapscan = off
SET enable_hashjoin = off SET enable_mergejoin = off SET enable_material = off SET plan_cache_mode = force_generic_plan
SET jit = off SET lock_timeout = '100ms' AS $f$
#variable_conflict use_column
DECLARE
    v_now int8 := coalesce(nullif(p_now, 0), _us(now()));
    v_last int8 := CASE WHEN p_now = 0 THEN v_now - 1 ELSE p_now END; -- the last key that is due
    v_paused int8[];
    v_max int4[] := p_max; -- what each rule may still take
    v_class int4;
    v_lane int8[];
    v_from int8[];
    v_from_id bytea[];
    v_rule int4[];
    v_tid tid[];
    v_tid_rule int4[];
    v_slot int2[];
    v_known bool; -- where their entries were put
    v_one int2;
    v_gate int4;
    v_gated bool := false; -- it has a gate: it may not wait for another, nor with rows that somebody else may be waiting for
    v_gid int8;
    v_gids int8[]; -- of the groups that are made; where leases and policies differ, by rule
    v_until int8;
    v_edge int8;
    v_edge_id bytea;
    v_taken int4 := 0;
    v_m int4;
    v_n int4;
    v_snapshot text := pg_current_snapshot()::text;
    v_first bool;
    v_away bool := false;
    v_turn int4;
    v_alone bool; -- with all lanes: nobody else is at their first rows
    v_left int4;
    v_same bool; -- one rule for all lanes
    v_bound bool; -- a rule may not take as many as there is room for
    v_like bool; -- leases and policies of all rules are alike
    i int4 := 1;
    j int4 := 0;
    r int4;
BEGIN
    IF EXISTS (SELECT FROM paused) THEN
        SELECT array_agg(l.lane) INTO v_paused FROM lane l
            WHERE EXISTS (SELECT FROM paused p WHERE p.queue = l.queue OR p.queue = _parent(l.queue));
    END IF;
    WHILE i <= cardinality(p_lane) AND v_taken < p_n AND NOT v_away LOOP
        v_first := true;
        v_class := p_class[i];
        j := i;
        WHILE j < cardinality(p_lane) AND p_class[j + 1] = v_class LOOP
            j := j + 1;
        END LOOP;
        -- Who would take much waits for a turn before it looks: those who serve the same have the same first lane.  They need not serve
        -- the same after it, so a class that has nothing keeps nobody.
        IF p_defer AND NOT p_careful AND v_turn IS NULL AND NOT v_gated AND v_taken = 0 AND least(p_n, v_max[p_rule[i]]) >= 250 THEN
            IF j = cardinality(p_lane) OR EXISTS (
                SELECT FROM unnest(p_lane[i:j], p_from[i:j], p_from_id[i:j], p_rule[i:j]) u(lane, k, i, rule)
                CROSS JOIN LATERAL (SELECT FROM ready x WHERE x.lane = u.lane AND (x.key, x.id) >= (u.k, u.i) AND x.key <= v_last
                    ORDER BY x.lane, x.key, x.id LIMIT 1) x
                WHERE v_max[u.rule] > 0 AND (v_paused IS NULL OR u.lane & -2 <> ALL (v_paused))) THEN
                v_turn := _turn(p_lane[i]);
                IF v_turn < 0 THEN
                    v_away := true;
                    j := i - 1;
                    EXIT;
                END IF;
                p_defer := v_turn = 0;
            END IF;
        END IF;
        LOOP -- until this class has nothing more
            -- Lanes that have something, each from its first row on: what is dead before that is passed once.
            SELECT array_agg(u.lane), array_agg(x.key), array_agg(x.id), array_agg(u.rule)
                INTO v_lane, v_from, v_from_id, v_rule
                FROM unnest(p_lane[i:j], p_from[i:j], p_from_id[i:j], p_rule[i:j]) u(lane, k, i, rule)
                CROSS JOIN LATERAL (SELECT x.key, x.id FROM ready x WHERE x.lane = u.lane AND (x.key, x.id) >= (u.k, u.i)
                    AND x.key <= v_last ORDER BY x.lane, x.key, x.id LIMIT 1) x
                WHERE v_max[u.rule] > 0 AND (v_paused IS NULL OR u.lane & -2 <> ALL (v_paused));
            IF v_first THEN
                v_first := false;
                ord := -2;
                FOR r IN 1..coalesce(cardinality(v_lane), 0) LOOP
                    lane := v_lane[r];
                    key := v_from[r];
                    id := v_from_id[r];
                    RETURN NEXT;
                END LOOP;
                IF v_paused IS NOT NULL OR 0 = ANY (v_max) THEN
                    RETURN QUERY SELECT -2, u.lane, NULL::int8, NULL::int8, NULL::int4, NULL::int4, NULL::int8, NULL::int8, NULL::int8,
                            NULL::int4, NULL::int8, NULL::bytea, NULL::bytea, NULL::bytea
                        FROM unnest(p_lane[i:j], p_rule[i:j]) u(lane, rule) WHERE v_max[u.rule] <= 0 OR u.lane & -2 = ANY (v_paused);
                END IF;
            END IF;
            EXIT WHEN v_lane IS NULL;
            v_left := p_n - v_taken;
            v_same := v_rule[1] = ALL (v_rule);
            IF v_same THEN
                v_left := least(v_left, v_max[v_rule[1]]);
                v_bound := false;
                v_like := true;
            ELSE
                SELECT bool_or(v_max[u] < v_left), bool_and(p_lease[u] = p_lease[v_rule[1]] AND p_policy[u] = p_policy[v_rule[1]])
                    INTO v_bound, v_like FROM unnest(v_rule) u;
            END IF;
            -- of several lanes so many of each that an exact beginning of the common order is among them
            v_m := CASE WHEN cardinality(v_lane) <= 2 THEN v_left ELSE least(v_left, v_left / cardinality(v_lane) + 16) END;
            v_gate := 0;
            WHILE NOT p_careful AND v_gate < 32 AND NOT pg_try_advisory_xact_lock(_gate(v_lane[1]), v_gate) LOOP
                v_gate := v_gate + 1;
                IF p_defer AND cardinality(v_lane) = 1 AND v_gate * v_left >= 250 THEN
                    v_turn := CASE WHEN v_gated OR v_taken > 0 THEN -1 ELSE _turn(v_lane[1]) END;
                    v_away := v_turn < 0;
                    v_gate := CASE v_turn WHEN 0 THEN 0 ELSE v_gate END;
                    EXIT;
                END IF;
            END LOOP;
            EXIT WHEN v_away;
            v_gated := true;
            v_alone := NOT p_careful AND v_gate = 0;
            FOR r IN 2..cardinality(v_lane) LOOP -- the others may have other company; locks of many would fill the server's table
                EXIT WHEN p_careful;
                IF cardinality(v_lane) > 32 OR NOT pg_try_advisory_xact_lock(_gate(v_lane[r]), v_gate) THEN
                    v_alone := false;
                    v_gate := 0;
                    EXIT;
                END IF;
            END LOOP;
            IF v_gate > 0 THEN
                SELECT array_agg(coalesce(x.key, u.k)), array_agg(coalesce(x.id, u.i)) INTO v_from, v_from_id
                    FROM unnest(v_lane, v_from, v_from_id) u(lane, k, i)
                    LEFT JOIN LATERAL (SELECT x.key, x.id FROM ready x WHERE x.lane = u.lane AND (x.key, x.id) >= (u.k, u.i)
                        AND x.key <= v_last ORDER BY x.lane, x.key, x.id OFFSET v_gate * v_m LIMIT 1) x ON true;
            END IF;
            IF cardinality(v_lane) > 1 THEN
                WITH c AS MATERIALIZED (
                    SELECT x.*, u.rule FROM unnest(v_lane, v_from, v_from_id, v_rule) u(lane, k, i, rule)
                    CROSS JOIN LATERAL (SELECT x.*, row_number() OVER () AS n FROM (
                        SELECT * FROM (SELECT x.ctid AS tid, x.slot, x.at, x.key, x.id FROM ready x
                            WHERE v_alone AND x.lane = u.lane AND (x.key, x.id) >= (u.k, u.i) AND x.key <= v_last
                            ORDER BY x.lane, x.key, x.id LIMIT v_m) x
                        UNION ALL SELECT * FROM (SELECT x.ctid AS tid, x.slot, x.at, x.key, x.id FROM ready x
                            WHERE NOT v_alone AND x.lane = u.lane AND (x.key, x.id) >= (u.k, u.i) AND x.key <= v_last
                            AND (NOT p_careful OR (SELECT 1 FROM lease l WHERE l.id = x.id LIMIT 1) IS NULL)
                            ORDER BY x.lane, x.key, x.id LIMIT v_m FOR UPDATE SKIP LOCKED) x) x) x),
                cut AS MATERIALIZED (SELECT c.key, c.id FROM c WHERE c.n = v_m ORDER BY c.key, c.id LIMIT 1),
                s AS MATERIALIZED (
                    SELECT * FROM c WHERE NOT v_bound
                    UNION ALL SELECT z.tid, z.slot, z.at, z.key, z.id, z.n, z.rule FROM (
                        SELECT c.*, row_number() OVER (PARTITION BY c.rule ORDER BY c.key, c.id) AS nth FROM c WHERE v_bound) z
                        WHERE z.nth <= v_max[z.rule])
                SELECT array_agg(s.tid), array_agg(s.slot), bool_and(NOT p_careful AND s.at <> '(4294967295,0)'), array_agg(s.rule),
                        (array_agg(s.key))[p_run - v_taken], (array_agg(s.id))[p_run - v_taken]
                    INTO v_tid, v_slot, v_known, v_tid_rule, v_edge, v_edge_id FROM (SELECT * FROM s
                        WHERE NOT EXISTS (SELECT FROM cut) OR (s.key, s.id) <= (SELECT cut.key, cut.id FROM cut)
                        ORDER BY s.key, s.id LIMIT v_left) s;
            ELSIF v_alone THEN
                SELECT array_agg(x.tid), array_agg(x.slot), bool_and(x.at <> '(4294967295,0)'),
                        (array_agg(x.key))[p_run - v_taken], (array_agg(x.id))[p_run - v_taken]
                    INTO v_tid, v_slot, v_known, v_edge, v_edge_id FROM (SELECT x.ctid AS tid, x.slot, x.at, x.key, x.id FROM ready x
                        WHERE x.lane = v_lane[1] AND (x.key, x.id) >= (v_from[1], v_from_id[1]) AND x.key <= v_last
                        ORDER BY x.lane, x.key, x.id LIMIT v_m) x;
            ELSE
                SELECT array_agg(x.tid), array_agg(x.slot), bool_and(NOT p_careful AND x.at <> '(4294967295,0)'),
                        (array_agg(x.key))[p_run - v_taken], (array_agg(x.id))[p_run - v_taken]
                    INTO v_tid, v_slot, v_known, v_edge, v_edge_id FROM (SELECT x.ctid AS tid, x.slot, x.at, x.key, x.id FROM ready x
                        WHERE x.lane = v_lane[1] AND (x.key, x.id) >= (v_from[1], v_from_id[1]) AND x.key <= v_last
                        AND (NOT p_careful OR (SELECT 1 FROM lease l WHERE l.id = x.id LIMIT 1) IS NULL)
                        ORDER BY x.lane, x.key, x.id LIMIT v_m FOR UPDATE SKIP LOCKED) x;
            END IF;
            IF v_tid IS NULL AND v_gate > 0 THEN -- what is free lies before
                p_careful := true;
                CONTINUE;
            END IF;
            EXIT WHEN v_tid IS NULL;
            -- those up to the edge start at once
            v_edge := CASE WHEN p_run > v_taken THEN coalesce(v_edge, v_last) ELSE -1 END;
            v_edge_id := coalesce(v_edge_id, E'\\xff');
            v_one := CASE WHEN v_known AND v_slot[1] = ALL (v_slot) THEN v_slot[1] END;
            IF v_like THEN
                v_until := v_now + p_lease[v_rule[1]];
                v_gid := nextval('grp_seq');
                v_gids := ARRAY[v_gid];
                --< of all slots
                RETURN QUERY
                WITH d AS MATERIALIZED (
                    DELETE FROM ready x WHERE x.ctid = ANY (v_tid) AND x.lane = ANY (v_lane) AND x.key <= v_last
                    RETURNING x.lane & -2 AS lane, x.key, x.fence + 1 AS fence, x.attempt + 1 AS attempt, x.slot, x.skips, x.keyed, x.id, x.at,
                        CASE WHEN (x.key, x.id) <= (v_edge, v_edge_id) THEN v_now END AS started),
                g AS (INSERT INTO grp(gid, look_at, lease, policy, n, worker, ids)
                    SELECT v_gid, v_until, p_lease[v_rule[1]], p_policy[v_rule[1]], count(*), p_worker, array_agg(d.id)
                    FROM d HAVING count(*) > 0),
                l AS (INSERT INTO lease(gid, lane, fence, until, due, started, attempt, slot, skips, keyed, id)
                    SELECT v_gid, d.lane, d.fence, v_until, d.key, d.started, d.attempt, d.slot, d.skips, d.keyed, d.id FROM d),
                t AS (INSERT INTO tally(lane, waiting) SELECT d.lane, -count(*) FROM d GROUP BY d.lane)
                SELECT v_taken + 1, d.lane, d.key, d.fence, d.attempt, v_rule[1], d.started, v_until,
                    e.created, e.max_attempts, e.timeout, d.id, e.payload, e.meta
                FROM d LEFT JOIN LATERAL (SELECT k.* FROM (SELECT k.* FROM entry k WHERE k.id = d.id AND k.slot = d.slot
                    UNION ALL SELECT * FROM entry_16 WHERE id = d.id) k LIMIT 1) e ON true;
                -->
            ELSE -- a group for each rule
                v_gids := NULL;
                FOREACH r IN ARRAY v_rule LOOP
                    v_gids[r] := coalesce(v_gids[r], nextval('grp_seq'));
                END LOOP;
                --< of all slots
                RETURN QUERY
                WITH d AS MATERIALIZED (
                    DELETE FROM ready x WHERE x.ctid = ANY (v_tid) AND x.lane = ANY (v_lane) AND x.key <= v_last
                    RETURNING x.lane & -2 AS lane, x.key, x.fence + 1 AS fence, x.attempt + 1 AS attempt, x.slot, x.skips, x.keyed, x.id, x.at,
                        CASE WHEN (x.key, x.id) <= (v_edge, v_edge_id) THEN v_now END AS started, v_rule[array_position(v_lane, x.lane)] AS rule),
                g AS (INSERT INTO grp(gid, look_at, lease, policy, n, worker, ids)
                    SELECT v_gids[d.rule], v_now + p_lease[d.rule], p_lease[d.rule], p_policy[d.rule], count(*), p_worker, array_agg(d.id)
                    FROM d GROUP BY d.rule),
                l AS (INSERT INTO lease(gid, lane, fence, until, due, started, attempt, slot, skips, keyed, id)
                    SELECT v_gids[d.rule], d.lane, d.fence, v_now + p_lease[d.rule], d.key, d.started, d.attempt, d.slot, d.skips, d.keyed, d.id
                    FROM d),
                t AS (INSERT INTO tally(lane, waiting) SELECT d.lane, -count(*) FROM d GROUP BY d.lane)
                SELECT v_taken + 1, d.lane, d.key, d.fence, d.attempt, d.rule, d.started, v_now + p_lease[d.rule],
                    e.created, e.max_attempts, e.timeout, d.id, e.payload, e.meta
                FROM d LEFT JOIN LATERAL (SELECT k.* FROM (SELECT k.* FROM entry k WHERE k.id = d.id AND k.slot = d.slot
                    UNION ALL SELECT * FROM entry_16 WHERE id = d.id) k LIMIT 1) e ON true;
                -->
            END IF;
            GET DIAGNOSTICS v_n = ROW_COUNT;
            IF v_one IS NOT NULL AND v_n < (SELECT sum(g.n) FROM grp g WHERE g.gid = ANY (v_gids)) THEN
                RAISE lock_not_available USING MESSAGE = 'an entry is not where it was put';
            END IF;
            v_taken := v_taken + v_n;
            IF v_same THEN
                v_max[v_rule[1]] := v_max[v_rule[1]] - v_n;
            ELSE
                IF v_n < cardinality(v_tid) THEN -- what others were quicker with does not count
                    v_tid_rule := ARRAY(SELECT v_rule[coalesce(array_position(v_lane, l.lane), array_position(v_lane, l.lane + 1))]
                        FROM grp g CROSS JOIN LATERAL unnest(g.ids) u(id) JOIN lease l ON l.id = u.id WHERE g.gid = ANY (v_gids));
                END IF;
                FOREACH r IN ARRAY v_tid_rule LOOP
                    v_max[r] := v_max[r] - 1;
                END LOOP;
            END IF;
            EXIT WHEN v_taken >= p_n;
            -- not alone after all: others were quicker with some, and there may be more
            p_careful := p_careful OR v_n < cardinality(v_tid);
        END LOOP;
        i := j + 1;
    END LOOP;
    key := NULL;
    id := NULL;
    IF v_away THEN
        ord := -1;
        RETURN NEXT;
    ELSIF v_taken < p_n THEN
        SELECT min((SELECT x.key FROM ready x WHERE x.lane = u.lane AND x.key > v_last ORDER BY x.lane, x.key LIMIT 1))
            INTO key FROM unnest(p_lane) u(lane);
    END IF;
    ord := -3;
    SELECT max(l.n), count(*) INTO lane, attempt FROM lane l;
    started := _us(now());
    until := _us(pg_postmaster_start_time());
    fence := pg_current_xact_id_if_assigned()::text::int8;
    rule := j;
    payload := convert_to(v_snapshot, 'UTF8');
    RETURN NEXT;
END $f$;

-- The jobs of one call mostly lie in one slot of the ring, v_one: the marked statements of these functions once more per slot,
-- over its table alone, so that the others are neither opened nor locked, and no row is sent on its way by its slot.  A claim
-- then reads the entries where they were put, without an index.
DO $do$
DECLARE
    v_name text;
    v_text text;
    v_all text;
BEGIN
    FOREACH v_name IN ARRAY ARRAY['_enqueue', '_claim'] LOOP
        v_text := pg_get_functiondef(('{s}.' || v_name)::regproc);
        FOR v_all IN SELECT m[1] FROM regexp_matches(v_text, '--< of all slots\n(.*?)-->', 'g') m LOOP
            v_text := replace(v_text, v_all, 'CASE v_one'
                || (SELECT string_agg(' WHEN ' || i || ' THEN ' || replace(regexp_replace(v_all, 'LEFT JOIN LATERAL .* ON true',
                    'CROSS JOIN LATERAL (SELECT k.* FROM entry_' || i || ' k WHERE k.ctid = d.at AND k.id = d.id LIMIT 1) e'),
                    'INTO entry(', 'INTO entry_' || i || '('), '' ORDER BY i) FROM generate_series(0, 16) i)
                || ' ELSE ' || v_all || ' END CASE;');
        END LOOP;
        EXECUTE v_text;
    END LOOP;
END $do$;

-- ---- the end of an attempt ---------------------------------------------------------------------

-- `= ANY (ARRAY[x])` below: a plain equality would let the planner read the whole index of a table that it believes to be
-- empty and compare each row with each, once the table was vacuumed.

-- Every way a held job leaves its holder.  p_outcome: 0 succeeded 1 retry 2 failed 3 cancelled 4 released;
-- 5 6 7 its lease expired: retry, failed, given back; 8 given back, nothing is written down.
-- p_delay: from now; below 0 = its due time stays.  p_ago: it started so long ago; NULL = never, or the lease knows.
-- p_guard: only where the lease has ended by then, and nobody else is at the row.
-- p_careful: true: rows that somebody else is at (an operator's open transaction) are not waited for, and answered with -1;
-- false: it may fail with 55P03, to be repeated with true; NULL: what is at most a renewal is waited for, as where it cannot be
-- repeated by itself.
-- Answers what became of each job; (0, 4) alone: all of them succeeded.  Those that are missing are not held under that fence; of these, the ones whose attempt
-- ended with this very outcome are answered again.
CREATE FUNCTION {s}._settle(p_now int8, p_guard int8, p_id bytea[], p_fence int8[], p_outcome int2[], p_delay int8[],
    p_ago int8[], p_kind int2[], p_message text[], p_exit int4[], p_signal int4[], p_rss int8[], p_log text[],
    p_tail bytea[], p_result bytea[], p_ref text[], p_careful bool)
RETURNS TABLE (ord int8, state int2)
LANGUAGE plpgsql SET search_path = {s}, pg_temp SET enable_seqscan = off SET enable_bitmapscan = off
SET enable_hashjoin = off SET enable_mergejoin = off SET enable_material = off SET plan_cache_mode = force_generic_plan
SET jit = off SET lock_timeout = '500ms' AS $f$
#variable_conflict use_column
DECLARE
    v_clock int8;
    v_now int8;
    v_choose bool := coalesce(p_careful, false) OR p_guard IS NOT NULL; -- only rows that nobody else is at
    v_free bytea[];
    v_keyed bytea[];
    v_n int4;
    v_found int4;
BEGIN
    PERFORM pg_current_xact_id();
    v_clock := _us(clock_timestamp());
    v_now := coalesce(nullif(p_now, 0), v_clock);
    IF v_choose THEN
        SELECT array_agg(x.id) INTO v_free FROM (SELECT l.id FROM unnest(p_id, p_fence) u(id, fence)
            JOIN lease l ON l.id = ANY (ARRAY[u.id]) WHERE l.fence = u.fence AND (p_guard IS NULL OR l.until <= p_guard)
            FOR UPDATE OF l SKIP LOCKED) x;
    END IF;
    IF NOT v_choose AND p_careful IS NOT NULL AND 0 = ALL (p_outcome) AND coalesce(p_message, p_log, p_ref) IS NULL AND coalesce(p_exit, p_signal) IS NULL
        AND p_rss IS NULL AND p_tail IS NULL THEN
        -- What is most frequent, with the fewest steps: leases are deleted by where they were seen.  One that is gone from
        -- there meanwhile makes the counts differ, and then all of it is undone.  (One that was only renewed is deleted by some
        -- versions of the server, and not by others.)
        WITH x AS MATERIALIZED (
            SELECT u.id, u.fence, u.result, l.tid, l.gid, l.lane, l.attempt, l.slot, l.keyed, coalesce(l.started, v_now - u.ago) AS started
            FROM unnest(p_id, p_fence, p_ago, p_result) u(id, fence, ago, result)
            CROSS JOIN LATERAL (SELECT l.ctid AS tid, l.gid, l.lane, l.attempt, l.slot, l.keyed, l.started FROM lease l
                WHERE l.id = u.id AND l.fence = u.fence LIMIT 1) l),
        c AS MATERIALIZED (SELECT x.gid, x.lane, count(*) AS n FROM x GROUP BY x.gid, x.lane),
        w AS MATERIALIZED (SELECT c.gid, c.n, g.worker, g.policy FROM (SELECT c.gid, sum(c.n) AS n FROM c GROUP BY c.gid) c
            LEFT JOIN LATERAL (SELECT g.worker, g.policy FROM grp g WHERE g.gid = c.gid LIMIT 1) g ON true),
        d AS (DELETE FROM lease l WHERE l.ctid = ANY (ARRAY(SELECT x.tid FROM x)) RETURNING 1),
        e AS (INSERT INTO ended(fence, finished, started, n, policy, slot, part, outcome, state, kind, id, worker, result)
            SELECT x.fence, v_now, x.started, x.attempt, w.policy, x.slot, 0, 0, 4, 0, x.id, w.worker, x.result
            FROM x JOIN w ON w.gid = x.gid),
        g AS (DELETE FROM grp g USING w WHERE g.gid = ANY (ARRAY[w.gid]) AND g.n = w.n),
        t AS (INSERT INTO tally(lane, waiting, succeeded, failed, cancelled) SELECT c.lane, 0, sum(c.n), 0, 0 FROM c GROUP BY c.lane)
        SELECT (SELECT count(*) FROM d), (SELECT coalesce(sum(w.n), 0) FROM w), (SELECT array_agg(x.id) FROM x WHERE x.keyed)
            INTO v_n, v_found, v_keyed;
        IF v_n <> v_found THEN
            RAISE lock_not_available USING MESSAGE = 'a lease was taken while its outcome was written';
        END IF;
        IF v_keyed IS NOT NULL THEN
            DELETE FROM ukey k WHERE k.id = ANY (v_keyed) AND k.mode = 1;
        END IF;
        IF v_n = cardinality(p_id) THEN
            RETURN QUERY SELECT 0::int8, 4::int2;
            RETURN;
        END IF;
        v_n := 0; -- all that ended so is told below
    ELSE
        RETURN QUERY
        WITH d AS MATERIALIZED (
            DELETE FROM lease l USING unnest(p_id, p_fence, p_outcome, p_delay, p_ago, p_kind, p_message, p_exit, p_signal, p_rss,
                    p_log, p_tail, p_result, p_ref) WITH ORDINALITY
                    u(id, fence, outcome, delay, ago, kind, message, exit, signal, rss, log, tail, result, ref, ord)
            WHERE l.id = ANY (ARRAY[u.id]) AND l.fence = u.fence AND (NOT v_choose OR l.id = ANY (v_free))
            RETURNING u.ord, u.id, u.fence, u.outcome, u.delay, u.kind, u.message, u.exit, u.signal, u.rss, u.log, u.tail,
                u.result, u.ref, l.gid, l.lane, l.attempt, l.slot, l.skips, l.keyed, l.due,
                coalesce(l.started, v_now - u.ago) AS started, l.cancel AND u.outcome NOT IN (0, 2, 3) AS stop),
        x AS MATERIALIZED (
            SELECT d.*, (CASE WHEN d.stop OR d.outcome = 3 THEN 6 WHEN d.outcome = 0 THEN 4 WHEN d.outcome IN (2, 6) THEN 5
                    ELSE 1 END)::int2 AS state,
                CASE WHEN d.delay < 0 THEN least(d.due, v_now) ELSE v_now + d.delay END AS again,
                g.worker, g.policy
            FROM d LEFT JOIN LATERAL (SELECT g.worker, g.policy FROM grp g WHERE g.gid = d.gid LIMIT 1) g ON true),
        e AS (INSERT INTO ended(fence, finished, started, max_rss, n, policy, exit_code, signal, slot, part, outcome, state, kind,
                id, worker, message, log, result_ref, log_tail, result)
            SELECT x.fence, v_now, x.started, x.rss, x.attempt, x.policy, x.exit, x.signal, x.slot, 0,
                CASE WHEN x.outcome IN (5, 6, 7) THEN 5 WHEN x.stop THEN 3 ELSE x.outcome END, x.state,
                CASE WHEN x.state = 6 THEN 11 ELSE coalesce(x.kind, 0) END, x.id, x.worker, x.message, x.log, x.ref, x.tail, x.result
            FROM x WHERE x.outcome <> 8 OR x.stop),
        r AS (INSERT INTO ready(lane, key, fence, attempt, slot, skips, keyed, id)
            SELECT CASE WHEN x.again >= v_clock THEN x.lane ELSE x.lane + 1 END, x.again, x.fence,
                CASE WHEN x.outcome IN (1, 5) THEN x.attempt ELSE greatest(x.attempt - 1, 0) END, x.slot,
                CASE x.outcome WHEN 7 THEN x.skips + 1 WHEN 8 THEN x.skips WHEN 4 THEN CASE WHEN x.started IS NULL THEN x.skips ELSE 0 END
                    ELSE 0 END, x.keyed, x.id
            FROM x WHERE x.state = 1),
        k AS (DELETE FROM ukey k USING x WHERE x.keyed AND x.state > 1 AND k.id = ANY (ARRAY[x.id]) AND k.mode = 1),
        g AS (DELETE FROM grp g USING (SELECT x.gid, count(*) AS n FROM x GROUP BY x.gid) c WHERE g.gid = ANY (ARRAY[c.gid]) AND g.n = c.n),
        t AS (INSERT INTO tally(lane, waiting, succeeded, failed, cancelled)
            SELECT x.lane, count(*) FILTER (WHERE x.state = 1), count(*) FILTER (WHERE x.state = 4),
                count(*) FILTER (WHERE x.state = 5), count(*) FILTER (WHERE x.state = 6) FROM x GROUP BY x.lane)
        SELECT x.ord, x.state FROM x;
        GET DIAGNOSTICS v_n = ROW_COUNT;
    END IF;
    IF v_n > 0 AND p_outcome && '{1, 4, 5, 7, 8}' THEN -- what is due again at once may be somebody else's to run
        PERFORM _wake(array_agg(DISTINCT n.queue)) FROM unnest(p_id, p_outcome, p_delay) u(id, outcome, delay)
            CROSS JOIN LATERAL (SELECT r.lane FROM ready r WHERE r.id = u.id LIMIT 1) r
            CROSS JOIN LATERAL (SELECT n.queue FROM lane n WHERE n.lane = r.lane & -2 LIMIT 1) n
            WHERE u.delay <= 0 AND u.outcome IN (1, 4, 5, 7, 8) HAVING count(*) > 0;
    END IF;
    IF v_n < cardinality(p_id) AND p_guard IS NULL THEN
        IF p_careful THEN -- before the look for ends: what ends between the two is then told once more, and not called lost
            RETURN QUERY SELECT u.ord, (-1)::int2 FROM unnest(p_id, p_fence) WITH ORDINALITY u(id, fence, ord)
                CROSS JOIN LATERAL (SELECT FROM lease l WHERE l.id = u.id AND l.fence = u.fence LIMIT 1) l;
        END IF;
        -- a statement of its own: the first one may have waited for the very transaction that wrote it
        RETURN QUERY SELECT u.ord, e.state FROM unnest(p_id, p_fence, p_outcome) WITH ORDINALITY u(id, fence, outcome, ord)
            CROSS JOIN LATERAL (SELECT e.state, e.outcome FROM ended e WHERE e.id = u.id AND e.fence = u.fence AND e.part = 0
                AND e.slot IN (_home(u.id), 16) LIMIT 1) e
            WHERE e.outcome = u.outcome OR (e.outcome = 3 AND u.outcome IN (1, 4));
        IF FOUND THEN
            PERFORM _vouch();
        END IF;
    END IF;
END $f$;

-- Leases go on: answers those that are still held, and whether they were asked to stop.  A row that somebody is at
-- this moment (an open cancel, a thief, a reaper) is not waited for, and not called renewed.
CREATE FUNCTION {s}._renew(p_now int8, p_id bytea[], p_fence int8[], p_lease int8[], p_ago int8[], p_progress bytea[])
RETURNS TABLE (ord int8, cancel bool, renewed bool)
LANGUAGE plpgsql SET search_path = {s}, pg_temp SET enable_seqscan = off SET enable_bitmapscan = off
SET enable_hashjoin = off SET enable_mergejoin = off SET enable_material = off SET plan_cache_mode = force_generic_plan
SET jit = off SET lock_timeout = '500ms' AS $f$
#variable_conflict use_column
DECLARE
    v_now int8 := coalesce(nullif(p_now, 0), _us(clock_timestamp()));
    v_free bytea[];
BEGIN
    SELECT array_agg(x.id) INTO v_free FROM (SELECT l.id FROM unnest(p_id, p_fence) u(id, fence)
        JOIN lease l ON l.id = ANY (ARRAY[u.id]) WHERE l.fence = u.fence FOR NO KEY UPDATE OF l SKIP LOCKED) x;
    UPDATE lease l SET until = v_now + u.lease, started = coalesce(l.started, v_now - u.ago),
            progress = coalesce(u.progress, l.progress)
        FROM unnest(p_id, p_fence, p_lease, p_ago, p_progress) u(id, fence, lease, ago, progress)
        WHERE l.id = ANY (ARRAY[u.id]) AND l.fence = u.fence AND l.id = ANY (v_free);
    RETURN QUERY SELECT u.ord, l.cancel, coalesce(l.id = ANY (v_free), false)
        FROM unnest(p_id, p_fence) WITH ORDINALITY u(id, fence, ord) JOIN lease l ON l.id = ANY (ARRAY[u.id]) WHERE l.fence = u.fence;
END $f$;

-- Held jobs whose lease has ended, oldest first, but not those of p_me.
CREATE FUNCTION {s}._expired(p_now int8, p_me text, p_max int4)
RETURNS TABLE (id bytea, fence int8, until int8, started int8, attempt int4, skips int2, cancel bool, worker text, policy text,
    max_attempts int4, now int8)
LANGUAGE plpgsql STABLE SET search_path = {s}, pg_temp SET enable_seqscan = off SET enable_bitmapscan = off
SET enable_hashjoin = off SET enable_mergejoin = off SET enable_material = off SET plan_cache_mode = force_generic_plan
SET jit = off AS $f$
#variable_conflict use_column
DECLARE
    v_now int8 := coalesce(nullif(p_now, 0), _us(clock_timestamp()));
BEGIN
    RETURN QUERY SELECT x.id, x.fence, x.until, x.started, x.attempt, x.skips, x.cancel, x.worker,
            (SELECT p.text FROM policy p WHERE p.id = x.policy),
            (SELECT e.max_attempts FROM entry e WHERE e.id = x.id AND e.slot IN (x.slot, 16) LIMIT 1), v_now
        FROM (SELECT l.*, g.worker, g.policy FROM grp g CROSS JOIN LATERAL unnest(g.ids) u(id)
            CROSS JOIN LATERAL (SELECT l.* FROM lease l WHERE l.id = u.id AND l.gid = g.gid AND l.until <= v_now LIMIT 1) l
            WHERE g.look_at <= v_now AND g.worker <> p_me ORDER BY l.until, l.id LIMIT p_max) x
        ORDER BY x.until, x.id;
END $f$;

-- Groups whose time to be looked at has come: thrown away if nothing of them is held, else looked at again when the
-- first of their leases ends.  How many were looked at.
CREATE FUNCTION {s}._groups_tidy(p_now int8, p_max int4) RETURNS int4
LANGUAGE plpgsql SET search_path = {s}, pg_temp SET enable_seqscan = off SET enable_bitmapscan = off
SET enable_hashjoin = off SET enable_mergejoin = off SET enable_material = off SET plan_cache_mode = force_generic_plan
SET jit = off AS $f$
DECLARE
    v_now int8 := coalesce(nullif(p_now, 0), _us(clock_timestamp()));
    v_n int4;
BEGIN
    WITH s AS MATERIALIZED (
        SELECT g.gid, g.ids, g.look_at FROM grp g WHERE g.look_at <= v_now ORDER BY g.look_at LIMIT p_max FOR UPDATE SKIP LOCKED),
    m AS MATERIALIZED (
        SELECT s.gid, s.look_at, (SELECT min(l.until) FROM unnest(s.ids) u(id)
            CROSS JOIN LATERAL (SELECT l.until FROM lease l WHERE l.id = u.id AND l.gid = s.gid LIMIT 1) l) AS next FROM s),
    d AS (DELETE FROM grp g USING m WHERE g.gid = m.gid AND m.next IS NULL),
    u AS (UPDATE grp g SET look_at = m.next FROM m WHERE g.gid = m.gid AND m.next > v_now)
    SELECT count(*) INTO v_n FROM m;
    RETURN v_n;
END $f$;

-- What a worker holds.
CREATE FUNCTION {s}._held(p_worker text) RETURNS TABLE (id bytea, fence int8, until int8, cancel bool, gid int8)
LANGUAGE plpgsql STABLE SET search_path = {s}, pg_temp SET enable_seqscan = off SET enable_bitmapscan = off
SET enable_hashjoin = off SET enable_mergejoin = off SET enable_material = off SET plan_cache_mode = force_generic_plan
SET jit = off AS $f$
#variable_conflict use_column
BEGIN
    RETURN QUERY SELECT l.id, l.fence, l.until, l.cancel, l.gid FROM grp g CROSS JOIN LATERAL unnest(g.ids) u(id)
        CROSS JOIN LATERAL (SELECT l.* FROM lease l WHERE l.id = u.id AND l.gid = g.gid LIMIT 1) l WHERE g.worker = p_worker;
END $f$;

-- What a worker holds and was asked to stop.
CREATE FUNCTION {s}._flagged(p_worker text, p_max int8) RETURNS TABLE (id bytea)
LANGUAGE plpgsql STABLE SET search_path = {s}, pg_temp SET enable_seqscan = off SET enable_bitmapscan = off
SET enable_hashjoin = off SET enable_mergejoin = off SET enable_material = off SET plan_cache_mode = force_generic_plan
SET jit = off AS $f$
#variable_conflict use_column
BEGIN
    RETURN QUERY SELECT l.id FROM lease l WHERE l.cancel
        AND (SELECT g.worker FROM grp g WHERE g.gid = l.gid) = p_worker ORDER BY l.id LIMIT p_max;
END $f$;

-- ---- by id ------------------------------------------------------------------------------------

-- Where a job is.  state NULL: it is between two places, look again.  No row: unknown.
CREATE FUNCTION {s}._look(p_id bytea) RETURNS TABLE (state int2, lane int8, fence int8, attempt int4, due int8, until int8,
    started int8, cancel bool, created int8, max_attempts int4, timeout int8, payload bytea, meta bytea, paused bool, now int8)
LANGUAGE plpgsql STABLE SET search_path = {s}, pg_temp SET enable_seqscan = off SET plan_cache_mode = force_generic_plan SET jit = off AS $f$
#variable_conflict use_column
BEGIN
    RETURN QUERY SELECT (CASE WHEN r.id IS NOT NULL THEN 1 WHEN l.id IS NULL THEN nullif(d.state, 1)
                WHEN l.started IS NULL THEN 2 ELSE 3 END)::int2,
            e.lane, coalesce(r.fence, l.fence, d.fence, 0), coalesce(r.attempt, l.attempt, 0), coalesce(r.key, l.due, e.due), l.until,
            l.started, coalesce(l.cancel, false), e.created, e.max_attempts, e.timeout, e.payload, e.meta,
            EXISTS (SELECT FROM paused p JOIN lane n ON n.lane = e.lane AND p.queue IN (n.queue, _parent(n.queue))),
            _us(clock_timestamp())
        FROM entry e
        LEFT JOIN LATERAL (SELECT r.* FROM ready r WHERE r.id = e.id LIMIT 1) r ON true
        LEFT JOIN LATERAL (SELECT l.* FROM lease l WHERE l.id = e.id LIMIT 1) l ON true
        LEFT JOIN LATERAL (SELECT d.state, d.fence FROM ended d WHERE d.id = e.id AND d.slot IN (_home(e.id), 16)
            ORDER BY d.fence DESC, d.part DESC LIMIT 1) d ON true
        WHERE e.id = p_id AND e.slot IN (_home(p_id), 16);
END $f$;

-- Takes one job that waits, or (p_steal) that is held and whose lease has ended, if it is still as it was seen: under
-- p_fence.  The new lease's times; no row: look again.
CREATE FUNCTION {s}._acquire(p_now int8, p_worker text, p_id bytea, p_fence int8, p_steal bool, p_attempt int4, p_lease int8,
    p_policy int4) RETURNS TABLE (started int8, until int8, due int8)
LANGUAGE plpgsql SET search_path = {s}, pg_temp SET enable_seqscan = off SET plan_cache_mode = force_generic_plan SET jit = off
SET lock_timeout = '500ms' AS $f$
#variable_conflict use_column
DECLARE
    v_now int8 := coalesce(nullif(p_now, 0), _us(clock_timestamp()));
    v_gid int8;
    x record;
BEGIN
    IF p_steal THEN
        DELETE FROM lease l WHERE l.id = p_id AND l.fence = p_fence AND l.until <= v_now AND NOT l.cancel
            RETURNING l.* INTO x;
        IF NOT FOUND THEN
            RETURN;
        END IF;
        INSERT INTO ended(fence, finished, started, n, policy, slot, part, outcome, state, kind, id, worker, message)
            SELECT x.fence, v_now, x.started, x.attempt, g.policy, x.slot, 0, 5, 1, 8, x.id, g.worker, 'the lease expired'
            FROM (SELECT 1) one LEFT JOIN grp g ON g.gid = x.gid;
        PERFORM pg_notify('{s_plain}', 'l ' || g.worker) FROM grp g WHERE g.gid = x.gid;
        due := x.due;
    ELSE
        DELETE FROM ready r WHERE r.id = p_id AND r.fence = p_fence AND r.key <= v_now RETURNING r.* INTO x;
        IF NOT FOUND THEN
            RETURN;
        END IF;
        INSERT INTO tally(lane, waiting) VALUES (x.lane & -2, -1);
        due := x.key;
    END IF;
    v_gid := nextval('grp_seq');
    INSERT INTO grp(gid, look_at, lease, policy, n, worker, ids) VALUES (v_gid, v_now + p_lease, p_lease, p_policy, 1, p_worker, ARRAY[p_id]);
    INSERT INTO lease(gid, lane, fence, until, due, started, attempt, slot, skips, keyed, id)
        VALUES (v_gid, x.lane & -2, p_fence + 1, v_now + p_lease, due, v_now, p_attempt, x.slot, x.skips, x.keyed, p_id);
    started := v_now;
    until := v_now + p_lease;
    RETURN NEXT;
END $f$;

-- Cancels.  verdict: 0 done 1 unknown 2 has ended already.  asked: it is held, and its worker was asked to stop it.
CREATE FUNCTION {s}._cancel(p_now int8, p_id bytea[]) RETURNS TABLE (ord int8, verdict int4, asked bool)
LANGUAGE plpgsql SET search_path = {s}, pg_temp SET enable_seqscan = off SET plan_cache_mode = force_generic_plan SET jit = off AS $f$
#variable_conflict use_column
DECLARE
    v_now int8;
    u record;
    x record;
    v_state int2;
BEGIN
    v_now := coalesce(nullif(p_now, 0), _us(clock_timestamp()));
    FOR u IN SELECT * FROM unnest(p_id) WITH ORDINALITY u(id, ord) ORDER BY u.id LOOP
        ord := u.ord;
        asked := false;
        verdict := NULL;
        FOR i IN 1..50 LOOP
            DELETE FROM ready r WHERE r.id = u.id RETURNING r.* INTO x;
            IF FOUND THEN
                INSERT INTO ended(fence, finished, n, slot, part, outcome, state, kind, id)
                    VALUES (x.fence, v_now, x.attempt, x.slot, 1, 3, 6, 11, x.id);
                IF x.keyed THEN
                    DELETE FROM ukey k WHERE k.id = x.id AND k.mode = 1;
                END IF;
                INSERT INTO tally(lane, waiting, cancelled) VALUES (x.lane & -2, -1, 1);
                verdict := 0;
                EXIT;
            END IF;
            UPDATE lease l SET cancel = true WHERE l.id = u.id AND NOT l.cancel
                RETURNING (SELECT g.worker FROM grp g WHERE g.gid = l.gid) AS worker INTO x;
            IF FOUND THEN
                IF x.worker IS NOT NULL THEN
                    PERFORM pg_notify('{s_plain}', 'c ' || x.worker);
                END IF;
                verdict := 0;
                asked := true;
                EXIT;
            END IF;
            SELECT k.state, k.cancel INTO x FROM _look(u.id) k;
            IF NOT FOUND THEN
                verdict := 1;
            ELSIF x.state >= 4 THEN
                verdict := 2;
            ELSIF x.cancel THEN
                verdict := 0;
                asked := true;
            END IF;
            EXIT WHEN verdict IS NOT NULL;
        END LOOP;
        IF verdict IS NULL THEN
            RAISE EXCEPTION 'job % is on the move', _id(u.id) USING ERRCODE = '40001';
        END IF;
        RETURN NEXT;
    END LOOP;
END $f$;

-- The operator's retry.  verdict: 0 done 1 unknown 2 neither failed nor cancelled 3 another job holds its key.
CREATE FUNCTION {s}._retry(p_now int8, p_id bytea[]) RETURNS TABLE (ord int8, verdict int4, queue text)
LANGUAGE plpgsql SET search_path = {s}, pg_temp SET enable_seqscan = off SET plan_cache_mode = force_generic_plan SET jit = off AS $f$
#variable_conflict use_column
DECLARE
    v_clock int8;
    v_now int8;
    u record;
    e record;
    d record;
    k record;
BEGIN
    PERFORM pg_current_xact_id();
    v_clock := _us(clock_timestamp());
    v_now := coalesce(nullif(p_now, 0), v_clock);
    FOR u IN SELECT * FROM unnest(p_id) WITH ORDINALITY u(id, ord) ORDER BY u.id LOOP
        ord := u.ord;
        queue := NULL;
        SELECT e.*, n.type, n.queue INTO e FROM entry e CROSS JOIN LATERAL (SELECT n.type, n.queue FROM lane n WHERE n.lane = e.lane LIMIT 1) n
            WHERE e.id = u.id AND e.slot IN (_home(u.id), 16);
        IF NOT FOUND THEN
            verdict := 1;
            RETURN NEXT;
            CONTINUE;
        END IF;
        -- the row that says how it ended is the lock: two of these go one after the other.  Only what is seen after it is had
        -- counts: the job may have run again meanwhile, and this may not be its end any more
        SELECT d.state, d.fence, d.part, d.slot INTO d FROM ended d WHERE d.id = u.id AND d.slot IN (_home(u.id), 16)
            ORDER BY d.fence DESC, d.part DESC LIMIT 1 FOR UPDATE;
        IF NOT FOUND OR d.state NOT IN (5, 6) OR EXISTS (SELECT FROM ready r WHERE r.id = u.id)
            OR EXISTS (SELECT FROM lease l WHERE l.id = u.id)
            OR EXISTS (SELECT FROM ended x WHERE x.id = u.id AND x.slot IN (_home(u.id), 16)
                AND (x.fence, x.part) > (d.fence, d.part)) THEN
            verdict := 2;
            RETURN NEXT;
            CONTINUE;
        END IF;
        IF e.umode > 0 THEN
            -- no lock: whoever holds the key shall be able to end while the caller's transaction is open
            SELECT x.id, x.mode, x.until INTO k FROM ukey x WHERE x.type = e.type AND x.key = e.key;
            IF FOUND AND k.id <> u.id AND (k.mode <> 2 OR k.until > v_now) THEN
                verdict := 3;
                RETURN NEXT;
                CONTINUE;
            END IF;
        END IF;
        IF e.umode = 1 THEN
            DELETE FROM ukey x WHERE x.type = e.type AND x.key = e.key AND (x.id = u.id OR x.mode = 2 AND x.until <= v_now);
            INSERT INTO ukey(type, key, id, mode) VALUES (e.type, e.key, u.id, 1) ON CONFLICT DO NOTHING;
            IF NOT FOUND THEN
                RAISE EXCEPTION 'the key of job % was taken this moment', _id(u.id) USING ERRCODE = '40001';
            END IF;
        END IF;
        DELETE FROM ended x WHERE x.id = u.id AND x.fence = d.fence AND x.part = 1 AND x.slot = d.slot;
        IF d.part = 0 THEN
            -- written anew as it was: whoever takes this lock with a snapshot from before now (REPEATABLE READ), in which the job
            -- has not been revived, must fail (40001) and not go by what he sees
            UPDATE ended x SET state = d.state WHERE x.id = u.id AND x.fence = d.fence AND x.part = 0 AND x.slot = d.slot;
        END IF;
        INSERT INTO ready(lane, key, fence, attempt, slot, skips, keyed, id)
            VALUES (CASE WHEN v_now >= v_clock THEN e.lane ELSE e.lane + 1 END, v_now, d.fence, 0, e.slot, 0, e.umode = 1, u.id);
        INSERT INTO tally(lane, waiting, failed, cancelled)
            VALUES (e.lane, 1, CASE WHEN d.state = 5 THEN -1 ELSE 0 END, CASE WHEN d.state = 6 THEN -1 ELSE 0 END);
        verdict := 0;
        queue := e.queue;
        RETURN NEXT;
    END LOOP;
END $f$;

-- Removes jobs that have ended.  verdict: 0 done 1 unknown 2 has not ended.  files: what lies outside and goes with it.
CREATE FUNCTION {s}._discard(p_id bytea[]) RETURNS TABLE (ord int8, verdict int4, files text[])
LANGUAGE plpgsql SET search_path = {s}, pg_temp SET enable_seqscan = off SET plan_cache_mode = force_generic_plan SET jit = off AS $f$
#variable_conflict use_column
DECLARE
    u record;
    e record;
    d record;
BEGIN
    FOR u IN SELECT * FROM unnest(p_id) WITH ORDINALITY u(id, ord) ORDER BY u.id LOOP
        ord := u.ord;
        files := NULL;
        SELECT e.lane INTO e FROM entry e WHERE e.id = u.id AND e.slot IN (_home(u.id), 16);
        IF NOT FOUND THEN
            verdict := 1;
            RETURN NEXT;
            CONTINUE;
        END IF;
        SELECT d.state, d.fence, d.part INTO d FROM ended d WHERE d.id = u.id AND d.slot IN (_home(u.id), 16)
            ORDER BY d.fence DESC, d.part DESC LIMIT 1 FOR UPDATE;
        IF NOT FOUND OR d.state < 4 OR EXISTS (SELECT FROM ready r WHERE r.id = u.id)
            OR EXISTS (SELECT FROM lease l WHERE l.id = u.id)
            OR EXISTS (SELECT FROM ended x WHERE x.id = u.id AND x.slot IN (_home(u.id), 16)
                AND (x.fence, x.part) > (d.fence, d.part)) THEN
            verdict := 2;
            RETURN NEXT;
            CONTINUE;
        END IF;
        WITH x AS (DELETE FROM ended x WHERE x.id = u.id AND x.slot IN (_home(u.id), 16) RETURNING x.log, x.result_ref)
            SELECT array_agg(f.f) FILTER (WHERE f.f IS NOT NULL) INTO files FROM x CROSS JOIN LATERAL (VALUES (x.log), (x.result_ref)) f(f);
        DELETE FROM entry x WHERE x.id = u.id AND x.slot IN (_home(u.id), 16);
        INSERT INTO tally(lane, waiting, succeeded, failed, cancelled)
            VALUES (e.lane, 0, -(d.state = 4)::int4, -(d.state = 5)::int4, -(d.state = 6)::int4);
        verdict := 0;
        RETURN NEXT;
    END LOOP;
END $f$;

-- ---- for whoever does something outside ---------------------------------------------------------

-- Is the attempt still the one that may write?  True holds until the caller's transaction ends.
-- With the rights of the owner: whoever writes elsewhere under a fence need not see the tables.
CREATE FUNCTION {s}.fence_ok(id text, fence int8) RETURNS bool
LANGUAGE plpgsql SECURITY DEFINER SET search_path = {s}, pg_temp SET enable_seqscan = off AS $f$
BEGIN
    PERFORM FROM lease l WHERE l.id = _key($1) AND l.fence = $2 FOR KEY SHARE;
    RETURN FOUND;
END $f$;

-- ---- waking -----------------------------------------------------------------------------------

-- Called by a worker's LISTEN session when it goes to sleep: from now on, until it unlocks, _wake tells it of work in
-- p_queues.  Adds up what it sees.  1: there is something already, or a lane that the caller does not know of (p_lanes: how many
-- rows the registry had, p_last: its last number).  2: somebody has a transaction open that may have put jobs there; if he
-- looked for sleepers before this he will not tell, so look again.  p_from: where to begin in each lane.
CREATE FUNCTION {s}._asleep(p_queues text[], p_lanes int8, p_last int8, p_lane int8[], p_from int8[]) RETURNS int4
LANGUAGE plpgsql SET search_path = {s}, pg_temp SET enable_seqscan = off SET enable_bitmapscan = off
SET enable_hashjoin = off SET enable_mergejoin = off SET enable_material = off SET plan_cache_mode = force_generic_plan
SET jit = off AS $f$
DECLARE
    v_now int8;
    v_open bool;
    v_work bool;
BEGIN
    PERFORM pg_advisory_lock_shared(_sleeper(q)) FROM unnest(p_queues) q;
    -- before the look for work, which sees what was committed since
    v_open := EXISTS (SELECT FROM pg_locks l WHERE l.locktype = 'relation' AND l.relation = 'ready'::regclass
        AND l.mode = 'RowExclusiveLock' AND l.pid IS DISTINCT FROM pg_backend_pid()
        AND l.database = (SELECT d.oid FROM pg_database d WHERE d.datname = current_database()));
    v_now := _us(clock_timestamp());
    -- a statement of its own, so that it sees whatever was committed by those who found nobody asleep
    SELECT count(*) <> p_lanes OR coalesce(max(l.n), 0) <> p_last OR EXISTS (SELECT FROM unnest(p_lane, p_from) u(lane, k)
            WHERE EXISTS (SELECT FROM ready r WHERE r.lane = u.lane AND r.key >= u.k AND r.key <= v_now
                ORDER BY r.lane, r.key LIMIT 1))
        INTO v_work FROM lane l;
    RETURN v_work::int4 + 2 * v_open::int4;
END $f$;

-- Tells workers that jobs may have been taken from them.
CREATE FUNCTION {s}._tell_lost(p_workers text[]) RETURNS void LANGUAGE sql AS
    $f$ SELECT pg_catalog.pg_notify('{s_plain}', 'l ' || w) FROM (SELECT DISTINCT pg_catalog.unnest(p_workers)) u(w) WHERE w <> '' $f$;

-- ---- who works here, and who leads ---------------------------------------------------------------

-- A leader's write begins with this: ST003 unless p_epoch leads (0 = an operator).  The row stays locked until the
-- transaction ends, so that nobody takes the lead over in the middle of it.
CREATE FUNCTION {s}._epoch_check(p_epoch int8) RETURNS void
LANGUAGE plpgsql SET search_path = {s}, pg_temp AS $f$
DECLARE
    v_epoch int8;
BEGIN
    IF p_epoch = 0 THEN
        RETURN;
    END IF;
    SELECT l.epoch INTO v_epoch FROM leader l WHERE l.one = 1 FOR SHARE;
    IF v_epoch IS DISTINCT FROM p_epoch THEN
        RAISE EXCEPTION 'epoch % leads no longer: it is % now', p_epoch, coalesce(v_epoch, 0) USING ERRCODE = 'ST003';
    END IF;
END $f$;

-- Takes, renews or (p_release) gives up the lead.  Whoever does not hold it at that moment gets a new epoch with it.
CREATE FUNCTION {s}._lead(p_now int8, p_worker text, p_term int8, p_release bool, OUT leads bool, OUT epoch int8, OUT until int8,
    OUT holder text)
LANGUAGE plpgsql SET search_path = {s}, pg_temp SET lock_timeout = '2s' AS $f$
#variable_conflict use_column
DECLARE
    v_now int8 := coalesce(nullif(p_now, 0), _us(clock_timestamp()));
BEGIN
    leads := false;
    SELECT l.epoch, l.until, l.worker INTO epoch, until, holder FROM leader l WHERE l.one = 1;
    IF until > v_now AND holder <> p_worker OR until <= v_now AND p_release THEN
        RETURN; -- a look is enough
    END IF;
    SELECT l.epoch, l.until, l.worker INTO STRICT epoch, until, holder FROM leader l WHERE l.one = 1 FOR UPDATE;
    v_now := coalesce(nullif(p_now, 0), _us(clock_timestamp())); -- it may have waited
    IF until > v_now AND holder <> p_worker OR until <= v_now AND p_release THEN
        RETURN;
    END IF;
    IF p_release THEN
        until := v_now;
    ELSE
        leads := true;
        epoch := epoch + CASE WHEN until > v_now THEN 0 ELSE 1 END;
        until := v_now + p_term;
        holder := p_worker;
    END IF;
    UPDATE leader l SET epoch = _lead.epoch, until = _lead.until, worker = _lead.holder WHERE l.one = 1;
END $f$;

-- Removes a worker's row.  p_expire: its process is gone, so it holds nothing any more, neither jobs nor the lead.
-- p_if_beat: only while its last beat is still this one (ST003 otherwise).
CREATE FUNCTION {s}._worker_remove(p_now int8, p_id text, p_expire bool, p_epoch int8, p_if_beat int8) RETURNS void
LANGUAGE plpgsql SET search_path = {s}, pg_temp SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off
SET jit = off SET lock_timeout = '2s' AS $f$
DECLARE
    v_now int8;
    v_beat int8;
BEGIN
    PERFORM _epoch_check(p_epoch);
    IF p_if_beat > 0 THEN
        SELECT w.beat INTO v_beat FROM worker w WHERE w.id = p_id FOR UPDATE;
        IF v_beat IS DISTINCT FROM p_if_beat THEN
            RAISE EXCEPTION 'worker % has moved on', p_id USING ERRCODE = 'ST003';
        END IF;
    END IF;
    DELETE FROM worker w WHERE w.id = p_id;
    IF NOT p_expire THEN
        RETURN;
    END IF;
    v_now := coalesce(nullif(p_now, 0), _us(clock_timestamp()));
    -- a row that somebody is at this moment is being ended anyway, or ends by itself
    UPDATE lease l SET until = v_now FROM (SELECT l.id FROM _held(p_id) h JOIN lease l ON l.id = h.id AND l.fence = h.fence
            WHERE l.until > v_now FOR NO KEY UPDATE OF l SKIP LOCKED) h WHERE l.id = h.id;
    UPDATE grp g SET look_at = v_now WHERE g.worker = p_id AND g.look_at > v_now;
    UPDATE leader l SET until = v_now WHERE l.one = 1 AND l.worker = p_id AND l.until > v_now;
END $f$;

-- ---- retention -----------------------------------------------------------------------------------

-- Moves when jobs of that slot are removed, before they are: see _ring_empty.
DO $do$
BEGIN
    FOR i IN 0..15 LOOP
        EXECUTE format('CREATE SEQUENCE {s}.gone_%s', i);
    END LOOP;
END $do$;
CREATE FUNCTION {s}._gone() RETURNS trigger LANGUAGE plpgsql SET search_path = {s}, pg_temp AS $f$
BEGIN
    PERFORM nextval(('gone_' || g.slot)::regclass) FROM (SELECT DISTINCT o.slot FROM old_rows o WHERE o.slot < 16) g;
    RETURN NULL;
END $f$;
CREATE TRIGGER entry_gone AFTER DELETE ON {s}.entry REFERENCING OLD TABLE AS old_rows FOR EACH STATEMENT EXECUTE FUNCTION {s}._gone();

-- Removes jobs that are in this state and locked by the caller.  Their files.
CREATE FUNCTION {s}._remove(p_id bytea[], p_state int4) RETURNS text[]
LANGUAGE plpgsql SET search_path = {s}, pg_temp SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off
SET jit = off AS $f$
DECLARE
    v_files text[];
BEGIN
    WITH d AS (DELETE FROM ended d USING unnest(p_id) u(id) WHERE d.id = u.id AND d.slot IN (_home(u.id), 16)
            RETURNING d.log, d.result_ref)
        SELECT array_agg(f.f) INTO v_files FROM d CROSS JOIN LATERAL (VALUES (d.log), (d.result_ref)) f(f) WHERE f.f IS NOT NULL;
    WITH e AS (DELETE FROM entry e USING unnest(p_id) u(id) WHERE e.id = u.id AND e.slot IN (_home(u.id), 16) RETURNING e.lane)
        INSERT INTO tally(lane, waiting, succeeded, failed, cancelled)
        SELECT e.lane, 0, -count(*) FILTER (WHERE p_state = 4), -count(*) FILTER (WHERE p_state = 5),
            -count(*) FILTER (WHERE p_state = 6) FROM e GROUP BY e.lane;
    RETURN v_files;
END $f$;

-- Up to p_max jobs that failed (5) or were cancelled (6) before p_before and are still just that, locked.
CREATE FUNCTION {s}._dead(p_state int4, p_before int8, p_max int4) RETURNS bytea[]
LANGUAGE plpgsql SET search_path = {s}, pg_temp SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off
SET jit = off AS $f$
DECLARE
    v_ids bytea[];
BEGIN
    -- the row that says how it ended is the lock: nobody can revive the job after this...
    SELECT array_agg(x.id) INTO v_ids FROM (SELECT d.id FROM ended d
        WHERE d.state IN (5, 6) AND d.state = p_state AND d.finished < p_before
        AND NOT EXISTS (SELECT FROM ready r WHERE r.id = d.id) AND NOT EXISTS (SELECT FROM lease l WHERE l.id = d.id)
        AND NOT EXISTS (SELECT FROM ended z WHERE z.id = d.id AND z.slot IN (_home(d.id), 16)
            AND (z.fence, z.part) > (d.fence, d.part))
        ORDER BY d.finished LIMIT p_max FOR UPDATE OF d SKIP LOCKED) x;
    -- ...and whoever did so before it is seen by this
    RETURN (SELECT array_agg(u.id) FROM unnest(v_ids) u(id)
        WHERE NOT EXISTS (SELECT FROM ready r WHERE r.id = u.id) AND NOT EXISTS (SELECT FROM lease l WHERE l.id = u.id)
        AND (SELECT d.state FROM ended d WHERE d.id = u.id AND d.slot IN (_home(u.id), 16)
            ORDER BY d.fence DESC, d.part DESC LIMIT 1) = p_state);
END $f$;

-- Removes up to p_max jobs that ended longer ago than their state is kept (0 = for ever), and keys that ran out.
-- Where to go on looking for succeeded ones: p_slot, p_from; what is behind that was found before, or came later.
-- A leader with a long history leaves succeeded ones of slots 0 to 15 to the ring.
CREATE FUNCTION {s}._prune(p_now int8, p_epoch int8, p_succeeded int8, p_failed int8, p_cancelled int8, p_max int4,
    INOUT p_slot int4, INOUT p_from int8, OUT n int4, OUT files text[])
LANGUAGE plpgsql SET search_path = {s}, pg_temp SET enable_seqscan = off SET jit = off SET lock_timeout = '2s' AS $f$
DECLARE
    v_now int8 := coalesce(nullif(p_now, 0), _us(clock_timestamp()));
    v_ids bytea[];
    v_wide bool;
    v_whole bool := p_slot = 0 AND p_from = 0;
    v_last int8;
    v_from int8;
BEGIN
    PERFORM _epoch_check(p_epoch);
    n := 0;
    IF p_failed > 0 THEN
        v_ids := _dead(5, v_now - p_failed, p_max);
        files := _remove(v_ids, 5);
        n := coalesce(cardinality(v_ids), 0);
    END IF;
    IF p_cancelled > 0 AND n < p_max THEN
        v_ids := _dead(6, v_now - p_cancelled, p_max - n);
        files := files || _remove(v_ids, 6);
        n := n + coalesce(cardinality(v_ids), 0);
    END IF;
    v_wide := p_epoch = 0 OR p_succeeded > 20 * 86400000000 OR (SELECT coalesce(sum(t.succeeded), 0) FROM tally t) < 100000;
    IF NOT v_wide THEN
        p_slot := 16;
    END IF;
    WHILE p_succeeded > 0 AND n < p_max LOOP
        EXECUTE format('SELECT array_agg(x.id), max(x.finished), min(x.finished) FROM (SELECT d.id, d.finished FROM ended_%s d'
            ' WHERE d.state = 4 AND d.finished < $1 AND d.finished >= $2 LIMIT $3 FOR UPDATE SKIP LOCKED) x', p_slot)
            INTO v_ids, v_last, v_from USING v_now - p_succeeded, p_from, p_max - n;
        IF v_ids IS NOT NULL THEN
            files := files || _remove(v_ids, 4);
            n := n + cardinality(v_ids);
            p_from := v_last;
        ELSIF p_slot < 16 THEN
            p_slot := p_slot + 1;
            p_from := 0;
        ELSE
            p_slot := CASE WHEN v_wide THEN 0 ELSE 16 END;
            p_from := 0;
            EXIT WHEN v_whole;
            v_whole := true; -- once more from the beginning: rows are not quite in the order of their times
        END IF;
    END LOOP;
    DELETE FROM ukey k USING (SELECT x.type, x.key FROM ukey x WHERE x.until < v_now ORDER BY x.until LIMIT p_max
        FOR UPDATE SKIP LOCKED) x WHERE k.type = x.type AND k.key = x.key;
END $f$;

-- How many _prune would remove in the end.
CREATE FUNCTION {s}._prune_count(p_now int8, p_succeeded int8, p_failed int8, p_cancelled int8) RETURNS int8
LANGUAGE plpgsql STABLE SET search_path = {s}, pg_temp SET jit = off AS $f$
DECLARE
    v_now int8 := coalesce(nullif(p_now, 0), _us(clock_timestamp()));
BEGIN
    RETURN (SELECT count(*) FROM ended d WHERE p_succeeded > 0 AND d.state = 4 AND d.finished < v_now - p_succeeded)
        + (SELECT count(*) FROM ended d WHERE d.state IN (5, 6)
            AND CASE d.state WHEN 5 THEN p_failed > 0 AND d.finished < v_now - p_failed
                ELSE p_cancelled > 0 AND d.finished < v_now - p_cancelled END
            AND NOT EXISTS (SELECT FROM ready r WHERE r.id = d.id) AND NOT EXISTS (SELECT FROM lease l WHERE l.id = d.id)
            AND NOT EXISTS (SELECT FROM ended z WHERE z.id = d.id AND z.slot IN (_home(d.id), 16)
                AND (z.fence, z.part) > (d.fence, d.part)));
END $f$;

-- ---- the ring ------------------------------------------------------------------------------------
--
-- A slot whose time is over, and in which nothing that succeeded is kept any longer, is emptied at once:
--
--     _ring_next    is there one that is worth it?
--     _ring_begin   remembers what came last; goes on when everybody who wrote before that has ended
--     _ring_step    looks through it, some jobs at a time, without a lock that anybody would notice: those that are still needed
--                   (they wait, are held, failed, were cancelled, or succeeded late) move to slot 16; the others are counted and
--                   their files named
--     _ring_empty   takes the two tables for itself, if nobody is at them; what came meanwhile moves to slot 16; TRUNCATE
--
-- A succeeded job is never revived, so what was found not to be needed stays so.  A job whose entry has moved may end later:
-- its row in ended is then in its old slot, without an entry there, and moves too.

-- The slot whose time has been over for the longest, if it has at least p_min bytes.  NULL = none.
CREATE FUNCTION {s}._ring_next(p_keep int8, p_min int8) RETURNS int4
LANGUAGE sql STABLE SET search_path = {s}, pg_temp AS $f$
    WITH t AS (SELECT _us(clock_timestamp()) / 1000 AS ms),
    w AS (SELECT i AS slot, t.ms, -- its latest time began so many slots after 1970
            t.ms / 133200000 - (t.ms / 133200000 - i) % 16 AS nth FROM t, generate_series(0, 15) i)
    SELECT w.slot FROM w WHERE w.ms > (w.nth + 1) * 133200000 + p_keep / 1000 + 3600000
        AND pg_relation_size(('entry_' || w.slot)::regclass) + pg_relation_size(('ended_' || w.slot)::regclass) >= p_min
        ORDER BY w.nth LIMIT 1 $f$;

-- xid: of this transaction.  When all older ones have ended, whatever they added to the slot can be seen; what younger ones
-- add has a higher seq, or finished not before since (less an hour, for clocks that were set).
CREATE FUNCTION {s}._ring_begin(p_epoch int8, p_slot int4, OUT seq int8, OUT gone int8, OUT since int8, OUT xid int8)
LANGUAGE plpgsql SET search_path = {s}, pg_temp AS $f$
BEGIN
    -- before this transaction gets its number
    seq := coalesce(pg_sequence_last_value('entry_seq'), 0);
    gone := coalesce(pg_sequence_last_value(('gone_' || p_slot)::regclass), 0);
    since := _us(clock_timestamp()) - 3600000000;
    PERFORM _epoch_check(p_epoch);
    xid := pg_current_xact_id()::text::int8;
END $f$;

-- Jobs after p_after, in the order of their ids.  p_before: what succeeded before that is not needed.
-- last: where to go on; NULL = that was all.
CREATE FUNCTION {s}._ring_step(p_epoch int8, p_slot int4, p_after bytea, p_max int4, p_before int8, OUT last bytea, OUT moved int4,
    OUT lanes int8[], OUT counts int8[], OUT files text[])
LANGUAGE plpgsql SET search_path = {s}, pg_temp SET enable_seqscan = off SET jit = off SET lock_timeout = '100ms' AS $f$
DECLARE
    v_move bytea[];
BEGIN
    PERFORM _epoch_check(p_epoch);
    EXECUTE format('WITH b AS MATERIALIZED (SELECT e.id, e.lane FROM entry_%1$s e WHERE e.id > $1 ORDER BY e.id LIMIT $2),'
        ' hi AS MATERIALIZED (SELECT CASE WHEN (SELECT count(*) FROM b) = $2 THEN b.id END AS id FROM (SELECT 1) one'
        '     LEFT JOIN LATERAL (SELECT b.id FROM b ORDER BY b.id DESC LIMIT 1) b ON true),'
        ' d AS MATERIALIZED (SELECT d.id, d.state = 4 AND d.finished < $3 AS over, d.log, d.result_ref FROM ended_%1$s d'
        '     WHERE d.id > $1 AND d.id <= (SELECT coalesce(hi.id, decode(''ff'', ''hex'')) FROM hi)),'
        ' j AS MATERIALIZED (SELECT coalesce(b.id, d.id) AS id, b.lane, b.id IS NOT NULL AND coalesce(d.over, false) AS over'
        '     FROM b FULL JOIN (SELECT d.id, bool_or(d.over) AS over FROM d GROUP BY d.id) d ON d.id = b.id),'
        ' c AS (SELECT j.lane, count(*) AS n FROM j WHERE j.over GROUP BY j.lane),'
        ' f AS (SELECT f.f FROM d JOIN j ON j.id = d.id AND j.over CROSS JOIN LATERAL (VALUES (d.log), (d.result_ref)) f(f)'
        '     WHERE (d.log IS NOT NULL OR d.result_ref IS NOT NULL) AND f.f IS NOT NULL)'
        ' SELECT (SELECT hi.id FROM hi), (SELECT array_agg(j.id) FROM j WHERE NOT j.over), (SELECT array_agg(c.lane ORDER BY c.lane) FROM c),'
        ' (SELECT array_agg(c.n ORDER BY c.lane) FROM c), (SELECT array_agg(f.f) FROM f)', p_slot)
        INTO last, v_move, lanes, counts, files USING p_after, p_max, p_before;
    moved := coalesce(cardinality(v_move), 0);
    IF moved > 0 THEN
        -- an UPDATE of the slot: whoever waits for such a row is told that it has moved (40001), not that it is gone
        EXECUTE format('UPDATE ended d SET slot = 16 WHERE d.slot = %s AND d.id = ANY ($1)', p_slot) USING v_move;
        EXECUTE format('UPDATE entry e SET slot = 16 WHERE e.slot = %s AND e.id = ANY ($1)'
            ' AND NOT EXISTS (SELECT FROM entry_16 k WHERE k.id = e.id)', p_slot) USING v_move;
    END IF;
END $f$;

-- 0 done.  1: jobs were removed or too many were added since _ring_begin, it must be looked through again.
-- 55P03: somebody is at it.  What is not seen is thrown away, so what is seen must be from after the lock was had.
CREATE FUNCTION {s}._ring_empty(p_epoch int8, p_slot int4, p_seq int8, p_gone int8, p_since int8, p_lanes int8[], p_counts int8[])
RETURNS int4
LANGUAGE plpgsql SET search_path = {s}, pg_temp SET enable_seqscan = off SET jit = off SET lock_timeout = '100ms' AS $f$
DECLARE
    v_late int4;
BEGIN
    IF current_setting('transaction_isolation') <> 'read committed' THEN
        RAISE EXCEPTION 'history cannot be cleared at isolation level %', current_setting('transaction_isolation')
            USING ERRCODE = 'ST004', HINT = 'take default_transaction_isolation out of the settings of the role and the database';
    END IF;
    PERFORM _epoch_check(p_epoch);
    EXECUTE format('LOCK TABLE entry_%1$s, ended_%1$s IN ACCESS EXCLUSIVE MODE', p_slot);
    EXECUTE format('SELECT (SELECT count(*) FROM (SELECT FROM ended_%1$s d WHERE d.finished >= $1 LIMIT 1001) x)'
        ' + (SELECT count(*) FROM (SELECT FROM entry_%1$s e WHERE e.seq > $2 LIMIT 1001) x)', p_slot) INTO v_late USING p_since, p_seq;
    IF v_late > 1000 OR coalesce(pg_sequence_last_value(('gone_' || p_slot)::regclass), 0) <> p_gone THEN
        RETURN 1;
    END IF;
    IF v_late > 0 THEN
        EXECUTE format('UPDATE ended d SET slot = 16 WHERE d.slot = %s AND d.finished >= $1', p_slot) USING p_since;
        EXECUTE format('UPDATE entry e SET slot = 16 WHERE e.slot = %s AND e.seq > $1'
            ' AND NOT EXISTS (SELECT FROM entry_16 k WHERE k.id = e.id)', p_slot) USING p_seq;
    END IF;
    INSERT INTO tally(lane, waiting, succeeded) SELECT u.lane, 0, -u.n FROM unnest(p_lanes, p_counts) u(lane, n);
    EXECUTE format('TRUNCATE entry_%1$s, ended_%1$s', p_slot);
    RETURN 0;
END $f$;

-- ---- tidying -------------------------------------------------------------------------------------

-- Adds up what tally has of each lane, if there is much; lanes that were written twice lose the later row.  How many rows went.
CREATE FUNCTION {s}._fold(p_epoch int8) RETURNS int4
LANGUAGE plpgsql SET search_path = {s}, pg_temp SET jit = off SET lock_timeout = '100ms' AS $f$
DECLARE
    v_n int4;
    v_few int4;
BEGIN
    PERFORM _epoch_check(p_epoch);
    DELETE FROM lane l USING lane k WHERE k.lane = l.lane AND k.n < l.n AND (k.queue, k.type, k.priority) = (l.queue, l.type, l.priority);
    GET DIAGNOSTICS v_n = ROW_COUNT;
    v_few := 500 + 2 * (SELECT count(*) FROM lane);
    IF (SELECT count(*) FROM (SELECT FROM tally LIMIT v_few) x) < v_few THEN
        RETURN v_n;
    END IF;
    WITH d AS (DELETE FROM tally t RETURNING t.*),
    s AS (INSERT INTO tally(lane, waiting, succeeded, failed, cancelled)
        SELECT d.lane, sum(d.waiting), sum(d.succeeded), sum(d.failed), sum(d.cancelled) FROM d GROUP BY d.lane
        HAVING sum(d.waiting) <> 0 OR sum(d.succeeded) <> 0 OR sum(d.failed) <> 0 OR sum(d.cancelled) <> 0)
    SELECT v_n + count(*) INTO v_n FROM d;
    RETURN v_n;
END $f$;

-- Summaries of what was added to a slot, so that looking for what is newest or oldest in it reads no more than that.
CREATE FUNCTION {s}._summarize(p_slot int4) RETURNS void
LANGUAGE plpgsql SET search_path = {s}, pg_temp SET lock_timeout = '100ms' AS $f$
BEGIN
    PERFORM brin_summarize_new_values(x.indexrelid) FROM pg_index x JOIN pg_class c ON c.oid = x.indexrelid
        JOIN pg_am a ON a.oid = c.relam
        WHERE a.amname = 'brin' AND x.indrelid IN (('entry_' || p_slot)::regclass, ('ended_' || p_slot)::regclass);
END $f$;

-- What the jobs themselves say about what tally should add up to.
CREATE FUNCTION {s}._counts() RETURNS TABLE (lane int8, waiting int8, succeeded int8, failed int8, cancelled int8)
LANGUAGE sql STABLE SET search_path = {s}, pg_temp SET jit = off AS $f$
    SELECT x.lane, count(*) FILTER (WHERE x.state = 1), count(*) FILTER (WHERE x.state = 4), count(*) FILTER (WHERE x.state = 5),
        count(*) FILTER (WHERE x.state = 6)
    FROM (SELECT r.lane & -2 AS lane, 1 AS state FROM ready r
        UNION ALL SELECT e.lane, d.state FROM entry e
            JOIN (SELECT DISTINCT ON (d.id) d.id, d.state FROM ended d ORDER BY d.id, d.fence DESC, d.part DESC) d ON d.id = e.id
            WHERE d.state >= 4 AND NOT EXISTS (SELECT FROM ready r WHERE r.id = e.id)
            AND NOT EXISTS (SELECT FROM lease l WHERE l.id = e.id)) x
    GROUP BY x.lane $f$;

-- Counts anew.
CREATE FUNCTION {s}._recount() RETURNS void
LANGUAGE plpgsql SET search_path = {s}, pg_temp AS $f$
BEGIN
    PERFORM FROM leader l WHERE l.one = 1 FOR UPDATE; -- a _fold under way has its sum in no snapshot taken before it ends
    WITH d AS (DELETE FROM tally)
    INSERT INTO tally(lane, waiting, succeeded, failed, cancelled) SELECT * FROM _counts();
END $f$;

-- What no move of ours leaves behind: 1 jobs that are in no place 2 rows in ready without a job 3 held jobs that no reaper finds
-- 4 jobs that wait and are held 5 jobs that are there twice.
CREATE FUNCTION {s}._strays() RETURNS TABLE (kind int4, id bytea)
LANGUAGE sql STABLE SET search_path = {s}, pg_temp SET jit = off AS $f$
    SELECT 1, e.id FROM entry e
        LEFT JOIN (SELECT DISTINCT ON (d.id) d.id, d.state FROM ended d ORDER BY d.id, d.fence DESC, d.part DESC) d ON d.id = e.id
        WHERE coalesce(d.state, 1) < 4 AND NOT EXISTS (SELECT FROM ready r WHERE r.id = e.id)
        AND NOT EXISTS (SELECT FROM lease l WHERE l.id = e.id)
    UNION ALL
    SELECT 2, r.id FROM ready r WHERE NOT EXISTS (SELECT FROM entry e WHERE e.id = r.id)
    UNION ALL
    SELECT 3, l.id FROM lease l WHERE NOT EXISTS (SELECT FROM grp g WHERE g.gid = l.gid AND l.id = ANY (g.ids))
    UNION ALL
    SELECT 4, r.id FROM ready r JOIN lease l ON l.id = r.id
    UNION ALL
    SELECT 5, e.id FROM entry e WHERE e.slot < 16 AND EXISTS (SELECT FROM entry_16 k WHERE k.id = e.id) $f$;

-- Puts such jobs back in their places, and counts anew: those in no place wait again (they may have run before, under fences that
-- are not known any more: theirs go on from this moment, too).  How many.
CREATE FUNCTION {s}._mend() RETURNS int4
LANGUAGE plpgsql SET search_path = {s}, pg_temp AS $f$
DECLARE
    v_clock int8;
    v_gid int8;
    x record;
    n int4 := 0;
BEGIN
    PERFORM FROM leader l WHERE l.one = 1 FOR UPDATE; -- as _recount
    PERFORM pg_current_xact_id();
    FOR x IN SELECT * FROM _strays() LOOP
        n := n + 1;
        v_clock := _us(clock_timestamp());
        IF x.kind = 1 THEN
            INSERT INTO ready(lane, key, fence, attempt, slot, skips, keyed, id)
                SELECT e.lane, greatest(e.due, v_clock), greatest((SELECT max(d.fence) FROM ended d WHERE d.id = e.id), v_clock), 0, e.slot, 0,
                    e.umode = 1, e.id FROM entry e WHERE e.id = x.id LIMIT 1;
        ELSIF x.kind IN (2, 4) THEN
            DELETE FROM ready r WHERE r.id = x.id;
        ELSIF x.kind = 5 THEN -- the one that was kept is the older
            DELETE FROM entry e WHERE e.id = x.id AND e.slot < 16;
        ELSE
            v_gid := nextval('grp_seq');
            UPDATE lease l SET gid = v_gid WHERE l.id = x.id;
            INSERT INTO grp(gid, look_at, lease, policy, n, worker, ids)
                SELECT v_gid, l.until, 60000000, 0, 1, '', ARRAY[l.id] FROM lease l WHERE l.id = x.id;
        END IF;
    END LOOP;
    PERFORM _recount();
    RETURN n;
END $f$;
