"""A machine with ROS 2 over Zenoh, as far as Zenoh sees it: rmw_zenoh's router, and a node's session beside it.

``zenoh_host.py NAME`` says its name to all, and prints whom it hears. What rmw_zenoh's own configuration files say of
endpoints comes first, then ``ZENOH_CONFIG_OVERRIDE``, taken apart as rmw_zenoh does.
"""

from __future__ import annotations

import os
import sys
import time

import zenoh

_ROUTER = {"listen/endpoints": '["tcp/[::]:7447"]', "connect/endpoints": "[]"}
_NODE = {"listen/endpoints": '["tcp/localhost:0"]', "connect/endpoints": '["tcp/localhost:7447"]'}
_SAY_S = 0.2


def main() -> None:
    """Until killed."""
    name = sys.argv[1]
    with zenoh.open(_configuration("router", _ROUTER)), zenoh.open(_configuration("peer", _NODE)) as node:
        node.declare_subscriber("said/**", lambda sample: print("heard", sample.payload.to_string(), flush=True))
        while True:
            node.put(f"said/{name}", name)
            time.sleep(_SAY_S)


def _configuration(mode: str, endpoints: dict[str, str]) -> zenoh.Config:
    made = zenoh.Config()
    made.insert_json5("mode", f'"{mode}"')
    made.insert_json5("scouting/multicast/enabled", "false")
    for key, value in endpoints.items():
        made.insert_json5(key, value)
    for pair in os.environ["ZENOH_CONFIG_OVERRIDE"].split(";"):
        key, _, value = pair.partition("=")
        made.insert_json5(key, value)
    return made


if __name__ == "__main__":
    main()
