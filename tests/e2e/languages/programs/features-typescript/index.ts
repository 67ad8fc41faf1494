import * as pulumi from "@pulumi/pulumi";

/** A resource of the test provider, which the CLI downloads from a server in the cluster. */
class Step extends pulumi.CustomResource {
    constructor(name: string, value: pulumi.Input<string>, opts: pulumi.CustomResourceOptions) {
        super("testing:index:Step", name, { name, value }, {
            ...opts,
            version: "0.1.0",
            pluginDownloadURL: config.require("plugins"),
        });
    }
}

/** A component with one child. */
class Group extends pulumi.ComponentResource {
    readonly child: Step;

    constructor(name: string, value: pulumi.Input<string>) {
        super("features:index:Group", name);
        this.child = new Step(`${name}-child`, value, { parent: this });
        this.registerOutputs({ child: this.child.urn });
    }
}

const config = new pulumi.Config();
const network = new pulumi.StackReference(config.require("network"));
const group = new Group("group", pulumi.interpolate`one in ${network.requireOutput("name")}`);
const file = new pulumi.asset.FileAsset("greeting.txt");
const archive = new pulumi.asset.AssetArchive({ "greeting.txt": file });
const stored = new pulumi.Stash("stored", { input: { file, archive } });

export const parent = group.urn;
export const child = group.child.urn;
export const reference = network.requireOutput("name");
export const assets = stored.input;
