"""Native kernels, their CPU twin and the backends that run them."""
