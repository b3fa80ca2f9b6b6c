"""HTTP: sockets, framing, routes."""
