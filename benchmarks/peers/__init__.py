"""Other suites, emulated, put to the same wrong and right attentions as attncheck: see README.md beside this file."""
