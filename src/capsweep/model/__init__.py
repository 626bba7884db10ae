"""Networks, routing algorithms and losses in plain torch; every size is a constructor argument."""
