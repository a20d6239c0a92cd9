"""Evaluation: every arm on the same items and pools, with intervals, anchors and cost."""
