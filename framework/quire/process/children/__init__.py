"""Child processes.

child_process  start and end of a process and all its descendants
python_child   arguments of a process that imports what its parent does
watchdog       end of a process whose parent has died
stack_dump     stacks of a process that hangs
"""
