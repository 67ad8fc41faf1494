import pulumi

pulumi.export("value", pulumi.Stash("stored", input="forbidden").input)
