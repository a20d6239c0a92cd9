"""What each demonstration is worth by itself: estimation, choosing by it, asking for it cheaply, knowing beforehand."""
