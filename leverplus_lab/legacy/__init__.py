"""The earlier Lever-Plus code: its files both ways, its selectors, and its reports.

Nothing outside this room and the commands imports it; the catalog names its parts, and they are loaded when asked for.
"""
