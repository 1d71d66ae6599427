"""Types of the numbers that measures of `quire bench` take as arguments."""

from quire.cli.command_parser import number

at_least_one = number(int, 1)
