"""Workers in processes of their own: the engine's end, and the process of a rank.

placing         start of the processes, by an executor
ranks           all of them, as the engine sees them
nodes           machines, each with an agent that starts ranks there
worker_wire     message types
worker_process  entry point of a rank's process
worker_server   its main loop
key_exchange    keys through which ranks find each other
"""
