"""Problems: files, sets of the Hugging Face hub (GSM8K, MATH, AIME), the built-in task, prompts, filters."""
