"""Engines that sample responses: transformers and vLLM."""
