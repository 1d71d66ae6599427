"""From a step plan to tensors: slots, block tables, positions and input ids."""
