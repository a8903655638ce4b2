"""What is learned: networks, the algorithm, and inference with numpy for edges without torch."""
