"""Several engines of one model behind one client: routing, deaths and restarts.

router           places requests on replicas, and follows them to their end; no I/O
routing          the policies that it places them by
prefix_index     prompt blocks that each replica was sent
replica_loads    tokens that each replica has still to compute
restarts         times at which a dead replica is started again
replica_devices  GPUs of each replica
replica_launch   start of all replicas, and what each is given of the machine
replica          one replica: its start, its death and its restarts
replica_group    the processes of all of them
replicated_core  their requests, with the methods of `EngineCore`
replica_stats    their statistics as one
"""
