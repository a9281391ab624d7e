"""Small files of the state directory that a daemon can do without: what was seen of configurations and starts."""
