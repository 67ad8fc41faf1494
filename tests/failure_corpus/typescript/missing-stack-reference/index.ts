import * as pulumi from "@pulumi/pulumi";

const network = new pulumi.StackReference("organization/network/production");

export const vpc = network.requireOutput("vpc");
