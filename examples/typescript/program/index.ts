import * as pulumi from "@pulumi/pulumi";
import { Network } from "./network";

const config = new pulumi.Config();

const network = new Network("main", {
    cidr: config.require("cidr"),
    zones: config.requireObject<string[]>("zones"),
});

/** The address range of each subnet, by zone. */
export const subnets = network.subnets;

/** The URL contains a secret value, so the output is secret as well. */
export const databaseUrl = pulumi.interpolate`postgres://app:${config.requireSecret("databasePassword")}@database/app`;
