"""The code behind the notebooks: why GPUs wait for memory, and how FlashAttention stops the waiting."""
