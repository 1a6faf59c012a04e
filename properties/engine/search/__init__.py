"""The search for a case that refutes a property, and what is kept of it."""
