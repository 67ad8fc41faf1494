import { PolicyPack } from "@pulumi/policy";

new PolicyPack("values", {
    policies: [
        {
            name: "allowed-values",
            description: "Values must be allowed.",
            enforcementLevel: "mandatory",
            validateResource: (args, reportViolation) => {
                if (args.type === "pulumi:index:Stash" && args.props.input === "forbidden") {
                    reportViolation("the value is forbidden");
                }
            },
        },
    ],
});
