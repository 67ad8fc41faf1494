import pulumi

config = pulumi.Config()
pulumi.export("greeting", config.require("greeting"))
pulumi.export("password", config.require_secret("password"))
pulumi.export("version", "one")
