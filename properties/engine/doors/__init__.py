"""The ways in: the command line, pytest, Python."""
