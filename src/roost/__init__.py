"""roost: deploy, prove and measure speculative-decoding LLM servers."""

__version__ = "0.1.0"
