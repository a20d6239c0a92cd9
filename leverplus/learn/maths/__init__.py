"""Rewards, advantages, losses and schedules as pure functions: arrays and numbers in, arrays and numbers out."""
