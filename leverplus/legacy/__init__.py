"""The earlier Lever-Plus code: its files both ways, its selectors, its reports and its documented mistakes.

Nothing outside this room and the commands imports it; the catalog names its parts, and they are loaded when asked for.
"""
