"""Which names a bucket has and what stat says of them."""
