"""Out-of-distribution detection between MNIST, FMNIST and KMNIST."""
