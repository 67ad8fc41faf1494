import pulumi

def label(name: str, index: int) -> str:
    return name + "-" + index


pulumi.export("label", label("web", 1))
