"""The overlay network: EasyTier as a child process, its device as the kernel sees it, and who answers over it."""
