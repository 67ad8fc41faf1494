import greetings
import pulumi

pulumi.export("library", greetings.TEXT)
