import * as pulumi from "@pulumi/pulumi";

const port: number = "80";
export const url = pulumi.interpolate`${port}`;
