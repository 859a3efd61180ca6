"""`make learning` and `make matrix`: does training raise the reward?"""
