"""What `make bench` measures. Every number is printed with what it is compared to."""

from capsweep.runtime import torchvision_cure as torchvision_cure
