"""Ranks demonstrations by similarity, by what labels let expect, and by what each was measured to add; closed form."""
