"""The mathematics: exact answers, kinds of arithmetic, and how far an answer may be off. NumPy alone."""
