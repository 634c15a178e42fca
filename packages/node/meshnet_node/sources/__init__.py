"""Where a model's bytes come from."""
