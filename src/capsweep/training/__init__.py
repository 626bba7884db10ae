"""From one cell to its result: objective, Lightning module, callbacks, the cell's folder."""
