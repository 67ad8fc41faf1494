import * as pulumi from "@pulumi/pulumi";

interface Zone {
    name: string;
    subnets: string[];
}

const zones: Record<string, Zone> = {
    a: { name: "a", subnets: ["10.0.0.0/24"] },
};

export const subnet = pulumi.output(zones["b"].subnets[0]);
