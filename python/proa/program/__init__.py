"""Programs: what a model's forward pass says, checked or recorded without running it. No torch."""
