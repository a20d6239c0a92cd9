"""Any language or vision-language model that transformers loads, asked in batches that share what they can."""
