"""A model behind an OpenAI-compatible server: vLLM, SGLang, llama.cpp, or a hosted one."""
