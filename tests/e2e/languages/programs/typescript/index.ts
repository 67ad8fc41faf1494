import * as pulumi from "@pulumi/pulumi";

const config = new pulumi.Config();
export const greeting = config.require("greeting");
export const password = config.requireSecret("password");
export const version: string = "one";
