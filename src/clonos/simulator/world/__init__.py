"""The simulated world: virtual time, a network, disks, and a service. All of it can fail."""
