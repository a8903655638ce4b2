"""What daemons are made of, and how they live and end."""
