"""Building blocks for model authors; tensor-parallel and LoRA aware from the first line."""
