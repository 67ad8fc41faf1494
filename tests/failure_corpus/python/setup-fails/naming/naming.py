PREFIX = "web"
