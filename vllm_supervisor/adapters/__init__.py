"""One outside thing each. Adapters do not import each other."""
