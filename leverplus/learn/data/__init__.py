"""Where the rows come from that a training stage learns from: one protocol, and its implementations side by side."""
