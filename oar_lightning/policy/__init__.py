"""Any Hugging Face causal LM: loading, LoRA, attention, key-value cache, decoders, token budgets, out of memory."""
