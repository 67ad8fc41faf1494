import * as pulumi from "@pulumi/pulumi";

class Step extends pulumi.CustomResource {
    declare readonly count: pulumi.Output<number>;

    constructor(name: string) {
        super("testing:index:Step", name, { name, value: "one", count: undefined });
    }
}

export const count = new Step("step").count;
