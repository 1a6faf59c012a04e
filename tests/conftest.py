"""Every contract is known before a test makes a target."""

import properties.catalogue  # noqa: F401
