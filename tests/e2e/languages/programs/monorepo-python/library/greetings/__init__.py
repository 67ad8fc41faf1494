TEXT = "one"
