-- SPDX-License-Identifier: Apache-2.0
--
-- postgres_1_down.sql - takes away everything, jobs included; but no table that somebody else has put beside ours, as the search
-- path of a user who is called like the schema does.
DO $do$
DECLARE
    v_others text := (SELECT string_agg(c.relname, ', ' ORDER BY c.relname) FROM pg_class c
        WHERE c.relnamespace = '{s}'::regnamespace AND c.relkind IN ('r', 'p', 'f', 'm', 'v') AND c.relname !~ '^(entry|ended)(_[0-9]+)?$'
        AND c.relname NOT IN ('ready', 'lease', 'grp', 'policy', 'lane', 'tally', 'ukey', 'paused', 'worker', 'leader', 'schema_version'));
BEGIN
    IF v_others IS NOT NULL THEN
        RAISE EXCEPTION 'the schema % has tables that are not ours: %', '{s_plain}', v_others
            USING ERRCODE = 'ST004', HINT = 'move each of them: ALTER TABLE {s}.NAME SET SCHEMA public';
    END IF;
END $do$;
DROP SCHEMA {s} CASCADE;
