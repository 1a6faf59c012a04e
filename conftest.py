"""Where impls and properties meet for pytest, in a clone: the plugin finds the catalogue of impls beside it by name."""

pytest_plugins = ["properties.plugin"]
