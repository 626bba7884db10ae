"""The basis of every process: the terminal, and the imports of Ray, Lightning and torchvision."""
