"""What is learned from: environments, the workers that act in them, and what they send."""
