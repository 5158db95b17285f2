-- SPDX-License-Identifier: Apache-2.0
--
-- postgres_roles.sql - group roles to GRANT to the users that connect, each with no more than it needs.
--
--     {s_plain}_enqueue   may call enqueue and enqueue_many; sees nothing
--     {s_plain}_worker    may do all that `stint` does with jobs: worker, enqueue, job, queue, prune, ...; no DDL
--     {s_plain}_read      may read the views; changes nothing
--
-- No version of the schema but a file of its own: `migrate up` runs it after the last version, every time, since new versions
-- bring new functions, if the three roles are there or the user may create roles; else it skips and prints it.  It may be run
-- again at any time, by whoever owns the schema.  It is one statement, so that nobody meets a role half made.

DO $roles$
DECLARE
    c_all CONSTANT text := 'PUBLIC, "{s_plain}_enqueue", "{s_plain}_worker", "{s_plain}_read"';
    c_views CONSTANT text[] := ARRAY['_id', '_time', '_us', '_text', '_jsonb', '_base64', '_kind_name', '_last', '_first',
        '_error_of', '_result', '_entry_of']; -- whoever reads a view calls these
    r text;
    t record;
    f record;
BEGIN
    PERFORM pg_catalog.set_config('search_path', 'pg_catalog', true); -- whoever runs this may be anybody's superuser
    FOREACH r IN ARRAY ARRAY['{s_plain}_enqueue', '{s_plain}_worker', '{s_plain}_read'] LOOP
        IF NOT EXISTS (SELECT FROM pg_roles WHERE rolname = r) THEN
            BEGIN
                EXECUTE format('CREATE ROLE %I NOLOGIN', r);
            EXCEPTION WHEN duplicate_object OR unique_violation THEN
                NULL; -- somebody else has just made it
            END;
        END IF;
    END LOOP;

    -- from here on only what is granted
    FOREACH r IN ARRAY ARRAY['SCHEMA {s}', 'ALL TABLES IN SCHEMA {s}', 'ALL SEQUENCES IN SCHEMA {s}',
            'ALL FUNCTIONS IN SCHEMA {s}'] LOOP
        EXECUTE format('REVOKE ALL ON %s FROM %s', r, c_all);
    END LOOP;
    GRANT USAGE ON SCHEMA {s} TO "{s_plain}_enqueue", "{s_plain}_worker", "{s_plain}_read";

    FOR t IN SELECT c.oid::regclass AS name, c.relname, c.relkind FROM pg_class c
            WHERE c.relnamespace = '{s}'::regnamespace AND c.relkind IN ('r', 'p', 'v', 'S') LOOP
        EXECUTE format('GRANT %s ON %s TO "{s_plain}_worker"', CASE WHEN t.relkind = 'S' THEN 'USAGE, SELECT'
            WHEN t.relkind = 'v' OR t.relname = 'schema_version' THEN 'SELECT'
            WHEN t.relname ~ '^(entry|ended)_[0-9]+$' THEN 'SELECT, INSERT, UPDATE, DELETE, TRUNCATE'
            ELSE 'SELECT, INSERT, UPDATE, DELETE' END, CASE WHEN t.relkind = 'S' THEN 'SEQUENCE ' ELSE '' END || t.name);
        IF t.relkind = 'v' AND t.relname !~ '^_' OR t.relname = 'schema_version' THEN -- tables are read as the owner
            EXECUTE format('GRANT SELECT ON %s TO "{s_plain}_read"', t.name);
        ELSIF t.relname = 'entry_seq' THEN -- recent asks for the last number
            EXECUTE format('GRANT SELECT ON SEQUENCE %s TO "{s_plain}_read"', t.name);
        END IF;
    END LOOP;

    FOR f IN SELECT p.oid::regprocedure AS name, p.proname FROM pg_proc p WHERE p.pronamespace = '{s}'::regnamespace LOOP
        EXECUTE format('GRANT EXECUTE ON FUNCTION %s TO "{s_plain}_worker"', f.name);
        IF f.proname IN ('enqueue', 'enqueue_many') THEN
            EXECUTE format('GRANT EXECUTE ON FUNCTION %s TO "{s_plain}_enqueue"', f.name);
        ELSIF f.proname IN ('get', 'recent', 'id_key') OR f.proname = ANY (c_views) THEN
            EXECUTE format('GRANT EXECUTE ON FUNCTION %s TO "{s_plain}_read"', f.name);
        END IF;
    END LOOP;
END $roles$;
