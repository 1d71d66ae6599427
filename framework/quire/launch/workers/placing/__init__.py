"""Start of the processes of ranks by an executor.

worker_start    placement of the workers by the executor
ports           sockets at which ranks connect, and the workers that have joined
local_process   a rank as a child of the engine's process
helper_process  a process that an executor places workers with
"""
