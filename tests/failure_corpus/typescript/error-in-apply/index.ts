import * as pulumi from "@pulumi/pulumi";

const settings = pulumi.output({ endpoint: "not a url" });

export const host = settings.apply((value) => {
    const url = new URL(value.endpoint);
    return url.hostname;
});
