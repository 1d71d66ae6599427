"""Workers in processes of their own: the engine's end, and the process of a rank.

worker_start    placement of the workers by the executor
local_process   a rank as a child of the engine's process
worker_set      all ranks as one worker: start-up, and its deadlines
set_runner      steps of all ranks, and what follows a failed one
step_results    results of a step, from every rank, as one
rank_links      messages to and from all ranks
rank_link       connection of one rank, and what it does when it hangs
worker_wire     message types
worker_process  entry point of a rank's process
worker_server   its main loop
key_exchange    keys through which ranks find each other
"""
