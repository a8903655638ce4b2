"""The outside observer: asks the head's GCS every 20 ms and prints a line for each node that becomes alive.

It runs in the cloud node before what is measured begins, is the same for both roads, and knows nothing of EdgeLink.
Argument: the GCS address. Lines: ``{"at_s": <CLOCK_MONOTONIC, one for the whole machine>, "ip": …, "node_id": …}``.
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any

from ray._raylet import GcsClient  # type: ignore[attr-defined]

_INTERVAL_S = 0.02
_ALIVE = 0  # GcsNodeInfo.GcsNodeState


def main(address: str) -> None:
    gcs: Any = GcsClient(address=address)
    seen: set[str] = set()
    while True:
        nodes = gcs.get_all_node_info(timeout=10).values()
        at_s = time.monotonic()
        for node in nodes:
            node_id = node.node_id.hex()
            if node.state == _ALIVE and node_id not in seen:
                seen.add(node_id)
                print(json.dumps({"at_s": at_s, "ip": node.node_manager_address, "node_id": node_id}), flush=True)
        time.sleep(_INTERVAL_S)


main(sys.argv[1])
