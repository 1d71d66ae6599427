"""Which replica computes a request.

router             places requests on replicas, and follows them to their end; no I/O
routing_policy     the policies that it places them by
block_holders      replicas that hold each block
prefix_index       prompt blocks that each replica was sent
reported_prefixes  prefix caches as replicas report them; used where there are several routers
replica_loads      tokens that each replica has still to compute
"""
