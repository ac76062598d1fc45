-- Twin of leaky_bucket.py: the same function as token_bucket's.

return twin('token_bucket')
