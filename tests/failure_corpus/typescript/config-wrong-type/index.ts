import * as pulumi from "@pulumi/pulumi";

const config = new pulumi.Config();

export const replicas = config.requireNumber("replicas");
