#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""enqueue_psycopg.py URL ORDER - an order and the job that mails its receipt: both are there, or neither.

The table `orders` is that of docs/postgres.md."""
import json
import sys

try:
    import psycopg2 as psycopg  # python3-psycopg2
except ImportError:
    import psycopg  # psycopg 3

url, order = sys.argv[1:]
with psycopg.connect(url) as db, db.cursor() as cursor:  # commits at its end, or rolls back
    cursor.execute("INSERT INTO orders (id) VALUES (%s)", [order])
    cursor.execute("SELECT stint.enqueue('receipt', %s, queue => 'mail')", [json.dumps({"order": order})])
    print(cursor.fetchone()[0])
