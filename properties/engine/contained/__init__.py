"""A target in a process of its own: arguments and answers cross as plain buffers, and whatever the target does, the run goes on.

``link.py`` is the judge's side, ``worker.py`` the target's; ``docs/contained.md`` says what is held against what.
"""
