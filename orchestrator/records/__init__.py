"""The JSON given to ranks and written by them, and the beacon each rank keeps while it runs.

Standard library only and Python 3.10: the training container imports this package. Every format carries
`schema`, is read by `decode`, and a reader refuses a schema newer than its own.
"""
