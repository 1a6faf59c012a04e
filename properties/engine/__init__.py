"""The engine: draws cases, makes their tensors, calls the attention, and tries to refute properties.

Data flows one way: ``case`` → ``inputs`` → ``target`` → ``trial`` (oracle and bound) → ``search`` → ``report``.
"""
