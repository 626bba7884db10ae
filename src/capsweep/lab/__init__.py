"""Ask more of trained cells, and measure speed: what the product never imports."""
