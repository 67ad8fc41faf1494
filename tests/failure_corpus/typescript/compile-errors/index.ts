import * as pulumi from "@pulumi/pulumi";

import { nameOf } from "./names";

const replicas: number = "3";

export const name = nameOf({ application: "web", stage: 1 });
export const bucket = pulumi.outputs(replicas);
export const zone = zoen;
