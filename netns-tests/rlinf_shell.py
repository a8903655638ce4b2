"""Real RLinf: what of the driver's environment a worker on each edge has; one JSON line by rank."""

from __future__ import annotations

import json
import os

from omegaconf import OmegaConf
from rlinf.scheduler import Cluster, ComponentPlacement, Worker

EDGES = 2


class Looker(Worker):
    def __init__(self) -> None:
        super().__init__()

    def environment(self) -> dict[str, str]:
        return dict(os.environ)


def main() -> None:
    config = OmegaConf.create(
        {
            "cluster": {
                "num_nodes": EDGES + 1,
                "node_groups": [{"label": "edge", "node_ranks": f"1-{EDGES}"}],
                "component_placement": {"looker": {"node_group": "edge", "placement": f"0-{EDGES - 1}"}},
            }
        }
    )
    cluster = Cluster(cluster_cfg=config.cluster)
    strategy = ComponentPlacement(config, cluster).get_strategy("looker")
    group = Looker.create_group().launch(cluster, strategy, name="looker")
    print("\n" + json.dumps(group.environment().wait()), flush=True)


if __name__ == "__main__":
    main()
