-- SPDX-License-Identifier: Apache-2.0
--
-- postgres_1_down.sql - takes away everything, jobs included.
DROP SCHEMA {s} CASCADE;
