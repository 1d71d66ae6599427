"""Connections between machines: addresses, encryption, and who may connect.

network_hub        one process, and several that connect to it
network_channel    such a process's end
tcp_address        addresses, never of all interfaces
secure_socket      options of both ends
entrance           a hub's port with all that guards it
listening_port     the port, which can stop listening
listening_sockets  listening sockets of this process, and the filter that stops them
connection_guard   thread beside a listening socket that admits connections and reports their ends
half_open          connections that are not admitted yet, of which there is a limited number
listener_check     who listens at an address, asked before a socket connects
"""
