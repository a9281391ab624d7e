"""Ground floor: pure facts, arithmetic and decisions. No I/O, clock, randomness or logging."""
