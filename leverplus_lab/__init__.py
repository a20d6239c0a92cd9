"""What research needs: the embedded world, the earlier code's files and selectors, plans, the gallery.

The core (`leverplus`) imports nothing of this package: its catalog names parts, and they are loaded when asked for.
"""
