"""All ranks of an engine, as the engine sees them.

worker_set    all ranks as one worker: start-up, and its deadlines
set_runner    steps of all ranks, and what follows a failed one
step_results  results of a step, from every rank, as one
rank_links    messages to and from all ranks
rank_link     connection of one rank, and what it does when it hangs
"""
