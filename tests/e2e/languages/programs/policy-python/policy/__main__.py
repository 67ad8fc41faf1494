from pulumi_policy import EnforcementLevel, PolicyPack, ResourceValidationPolicy


def validate(args, report_violation):
    is_stash = args.resource_type == "pulumi:index:Stash"
    if is_stash and args.props.get("input") == "forbidden":
        report_violation("the value is forbidden")


PolicyPack(
    name="values",
    enforcement_level=EnforcementLevel.MANDATORY,
    policies=[
        ResourceValidationPolicy(
            name="allowed-values",
            description="Values must be allowed.",
            validate=validate,
        )
    ],
)
