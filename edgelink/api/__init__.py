"""The local API: HTTP on a unix socket, for this machine's users only."""
