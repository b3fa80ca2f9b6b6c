"""What the server tells of its work, and does about the machine's sleep meanwhile."""
