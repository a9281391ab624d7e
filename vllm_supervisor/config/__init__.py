"""Configuration: one YAML file, validated in full before anything is launched."""
