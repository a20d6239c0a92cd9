"""Parts of the earlier code's selectors that none of the core's recipes uses, and adapters (LoRA) in an embedder."""
