"""`make bench-sandbox`: the speed of boxes, beside other projects."""
