"""What `make bench` measures. Every number is printed with what it is compared to."""
