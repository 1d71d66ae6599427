"""Workers in processes of their own: the engine's end, and the process of a rank.

worker_start    placement of the workers by the executor
worker_set      all ranks as one worker: start-up, and its deadlines
step_results    results of a step, from every rank, as one
set_runner      steps of all ranks
rank_link       connection of a rank, and the reasons of its death
worker_wire     message types
worker_process  entry point of a rank's process
worker_server   its main loop
"""
