"""Looks at Ray's node table all the time, through every death of its GCS, and writes down each change.

node_table.py HELPER ADDRESS     a JSON line for each change: [time, [[ip, rank, Ray's id] of each that is alive]]
"""

from __future__ import annotations

import importlib.util
import json
import sys
import time
from typing import Any

LOOK_EVERY_S = 0.05


def main() -> None:
    location = importlib.util.spec_from_file_location("helper", sys.argv[1])
    assert location is not None
    assert location.loader is not None
    helper: Any = importlib.util.module_from_spec(location)
    location.loader.exec_module(helper)
    client, last = None, None
    while True:
        time.sleep(LOOK_EVERY_S)
        try:
            client = client or helper.connect(sys.argv[2])
            now = [[node["ip"], node["rank"], node["node_id"]] for node in helper.nodes(client, 2.0) if node["alive"]]
        except Exception:  # whatever is wrong with the GCS: the next one is asked
            client = None
            continue
        if now != last:
            last = now
            print(json.dumps([time.time(), now]), flush=True)


if __name__ == "__main__":
    main()
