"""Networks and losses, in plain torch. Sizes come from configuration; nothing here reads one."""
