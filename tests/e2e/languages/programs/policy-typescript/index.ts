import * as pulumi from "@pulumi/pulumi";

export const value = new pulumi.Stash("stored", { input: "forbidden" }).input;
