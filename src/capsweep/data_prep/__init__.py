"""Offline jobs that write shards: one file for each data set, and what they share."""

from capsweep import torchvision_cure as torchvision_cure
