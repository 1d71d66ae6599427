"""Start of the processes of ranks by an executor.

worker_start    placement of the workers by the executor
local_process   a rank as a child of the engine's process
helper_process  a process that an executor places workers with
"""
