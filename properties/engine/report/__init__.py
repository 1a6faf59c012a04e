"""Reports: one file a form. Data in, text out; the target is never called."""
