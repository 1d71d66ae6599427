"""Tools of a chat: their checks, the choice among them, and the constraints that follow."""
