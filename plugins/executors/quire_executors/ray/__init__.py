"""The executor for a Ray cluster: Ray places the ranks, and takes no part in their steps.

ray_executor    the executor, in the engine's process
ray_ranks       the ranks as Ray sees them, and the process of Ray's driver
ray_wire        messages between the engine and that process
ray_driver      entry point of that process: placement group and actors
ray_placement   which rank goes to which node
ray_actor       the actor of a rank, which starts `quire worker` and watches it
ray_relay       process through which `quire worker` outlives its actor
ray_head        whether Ray's head still answers
"""
