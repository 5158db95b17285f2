#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Work out the size of a picture made to fit a width.

    stint enqueue resize '{"width": 4000, "height": 3000, "fit": 800}'

How it ends decides what happens next: exit 0 is success, 65 says that trying again is useless,
anything else is tried again as `retry:` in stint.yaml says.  STINT_ATTEMPT counts from 1.
"""

import json
import os
import sys

EX_DATAERR = 65


def main():
    job = json.load(sys.stdin)
    attempt = int(os.environ["STINT_ATTEMPT"])

    if job["width"] <= 0:
        print("a picture without width cannot be resized", file=sys.stderr)
        return EX_DATAERR
    if job.get("flaky") and attempt == 1:
        print("the picture is not there yet", file=sys.stderr)
        return 1

    scale = job["fit"] / job["width"]
    json.dump({"width": job["fit"], "height": round(job["height"] * scale), "attempt": attempt}, sys.stdout)
    return 0


if __name__ == "__main__":
    sys.exit(main())
