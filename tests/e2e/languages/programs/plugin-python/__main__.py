import pulumi


class Step(pulumi.CustomResource):
    count: pulumi.Output[int]

    def __init__(self, name):
        inputs = {"name": name, "value": "one", "count": None}
        super().__init__("testing:index:Step", name, inputs)


pulumi.export("count", Step("step").count.apply(int))
