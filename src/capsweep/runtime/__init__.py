"""What every process uses first: the terminal, Ray, Lightning and torchvision."""
