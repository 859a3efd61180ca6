"""`make hacking`: does training discover weaknesses of tasks?"""
