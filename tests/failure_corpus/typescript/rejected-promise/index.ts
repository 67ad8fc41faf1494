import * as pulumi from "@pulumi/pulumi";

async function zones(region: string): Promise<string[]> {
    await new Promise((resolve) => setTimeout(resolve, 10));
    throw new Error(`no zones in region ${region}`);
}

const found = zones("north");

export const count = pulumi.output(found).apply((names) => names.length);
