"""The engine: GGUF files, llama.cpp and the thread that runs it. Only this package imports ``llama_cpp``."""
