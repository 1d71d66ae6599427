"""`quire <command>`: find the command, and import only that one."""


def main() -> int:
    """Run the command line."""
    raise SystemExit("not yet")
