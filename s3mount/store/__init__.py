"""The object store: requests, retries, credentials."""
