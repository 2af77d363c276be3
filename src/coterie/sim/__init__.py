"""The simulator: virtual time, a network and disks with seeded faults, plans, campaigns. One seed is one run."""
