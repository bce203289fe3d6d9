"""Which bytes to fetch when, and how a read is answered."""
