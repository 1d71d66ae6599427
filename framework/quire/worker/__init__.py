"""Worker, one per device: builds the model, loads its weights and runs steps. Imports torch."""
