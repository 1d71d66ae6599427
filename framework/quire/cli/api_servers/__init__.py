"""`quire serve --api-server-count N`: several processes that serve HTTP for one engine.

group_run          the parent: it starts the engine and the processes
engine_door        how the parent lets a process into the engine
launching          launches a process
entry              entry point of a process
front_end_process  a process, from its configuration to its end
front_end_config   its configuration
"""
