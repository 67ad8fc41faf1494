import pulumi

pulumi.export("page", pulumi.FileAsset("site/index.html"))
