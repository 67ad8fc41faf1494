import * as pulumi from "@pulumi/pulumi";

const config = new pulumi.Config();

export const zone = pulumi.output(config.get("zone") ?? "a";
export const name = "web";
