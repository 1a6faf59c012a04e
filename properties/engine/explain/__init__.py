"""What a finding is about: which known mistake behaves like it, and what can be measured of it."""
