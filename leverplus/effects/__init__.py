"""What each demonstration adds by itself: estimation, choosing by it, asking for it cheaply, knowing beforehand."""
