"""Processes, and what they say to each other.

children        child processes, watchdogs and stacks
hub             one process and several that connect to it; `local` and `network` have the two kinds
local           connections on one machine
network         connections between machines
ipc             messages as bytes
launch_key      secret of a launch, with which processes on other machines connect
start_key       file of that secret
wake_event      event that any thread may set
interrupts      Ctrl-C that waits
deferred_modules  modules that are executed when they are first used
garbage         garbage collection while a process starts, and while it serves
error_message   an exception as a message
traceback_text  an exception as text
"""
