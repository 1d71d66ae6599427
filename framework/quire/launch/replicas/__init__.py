"""Several engines of one model behind one client: routing, deaths and restarts.

routing          which replica computes a request
restarts         times at which a dead replica is started again
replica_devices  GPUs of each replica
replica_launch   start of all replicas, and what each is given of the machine
replica          one replica: its start, its death and its restarts
replica_group    the processes of all of them
replicated_core  their requests, with the methods of `EngineCore`
replica_stats    their statistics as one
replica_kv_feed  changes of their prefix caches as one feed
"""
