"""The embedded world: rendered scenes, questions, facts, a tiny vision-language model and a tiny dual encoder."""
