"""The registry's side: who gets which lease, and what its broker and database keep."""
