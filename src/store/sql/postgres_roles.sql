-- SPDX-License-Identifier: Apache-2.0
--
-- postgres_roles.sql - group roles to GRANT to the users that connect: NAME_worker may do all that `stint` does with jobs,
-- NAME_reader only looks.  May be run again after every migration.

DO $roles$
DECLARE
    r text;
BEGIN
    FOREACH r IN ARRAY ARRAY['{s_plain}_worker', '{s_plain}_reader'] LOOP
        IF NOT EXISTS (SELECT FROM pg_roles WHERE rolname = r) THEN
            BEGIN
                EXECUTE format('CREATE ROLE %I NOLOGIN', r);
            EXCEPTION WHEN duplicate_object OR unique_violation THEN
                NULL; -- somebody else has just made it
            END;
        END IF;
    END LOOP;
END $roles$;
GRANT USAGE ON SCHEMA {s} TO "{s_plain}_worker", "{s_plain}_reader";
GRANT SELECT ON ALL TABLES IN SCHEMA {s} TO "{s_plain}_reader";
GRANT SELECT, INSERT, UPDATE, DELETE, TRUNCATE ON ALL TABLES IN SCHEMA {s} TO "{s_plain}_worker";
REVOKE INSERT, UPDATE, DELETE, TRUNCATE ON {s}.schema_version FROM "{s_plain}_worker";
GRANT USAGE ON ALL SEQUENCES IN SCHEMA {s} TO "{s_plain}_worker";
GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA {s} TO "{s_plain}_worker", "{s_plain}_reader";
