"""Cases: what is drawn, why, and the numbers that follow from it."""
