"""Nodes of a Ray cluster on this machine, for `ray_nodes`. The process is controlled through standard input.

It prints the cluster's address. The line `kill N` kills node N; any other line ends the cluster.
"""

import logging
import sys
import warnings

warnings.simplefilter("ignore")


def main() -> None:
    from ray.cluster_utils import Cluster

    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 2, "include_dashboard": False})
    nodes = [cluster.add_node(num_cpus=2, num_gpus=gpus) for gpus in (int(sys.argv[1]), 0)]
    print(cluster.address, flush=True)
    for line in sys.stdin:
        word, _, number = line.strip().partition(" ")
        if word != "kill":
            break
        cluster.remove_node(nodes[int(number)], allow_graceful=False)
        print("killed", flush=True)
    cluster.shutdown()


if __name__ == "__main__":
    logging.basicConfig(level=logging.ERROR)
    main()
