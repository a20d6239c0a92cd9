"""Files of the earlier Lever-Plus code, both ways: beam data, RL data, metrics and checkpoints."""
