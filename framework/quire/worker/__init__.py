"""The worker: one per device. Builds the model, loads it, and runs steps. Loads torch."""
