import * as pulumi from "@pulumi/pulumi";

export const zone = pulumi.output("a");
