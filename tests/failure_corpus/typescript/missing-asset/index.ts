import * as pulumi from "@pulumi/pulumi";

export const page = new pulumi.asset.FileAsset("site/index.html");
