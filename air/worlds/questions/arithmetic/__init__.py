"""The tasks with arithmetic word problems in the style of the GSM8K dataset. Each answer is one integer."""
