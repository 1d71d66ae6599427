"""Connections between processes of one machine, which no other user may open.

unix_connection  one connection: whole messages, in order
unix_listener    a socket file on which processes connect
waiting          waits for several connections and file descriptors together
channel          messages between a pair of processes
channel_set      several channels that one thread waits for
local_hub        one process, and several that connect to it
local_channel    such a process's end
"""
