"""The ``meshnet`` command: thin. It reads flags and environment and starts what the other packages are."""
