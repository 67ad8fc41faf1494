import pulumi

from components.service import Service

web = Service("web", port=99999)

pulumi.export("urn", web.urn)
