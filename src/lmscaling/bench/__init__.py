"""How fast this device computes; every program here measures and writes what it measured."""
