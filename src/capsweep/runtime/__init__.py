"""The ground that every process stands on: terminal, Ray, Lightning, torchvision."""
