import * as pulumi from "@pulumi/pulumi";

const config = new pulumi.Config();

export const zone = config.require("zone");
