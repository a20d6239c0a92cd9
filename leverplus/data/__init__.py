"""A user's examples: readers of every usual format, the forms of records, and what kind of answers they hold."""
