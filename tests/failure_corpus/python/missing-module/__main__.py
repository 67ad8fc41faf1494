import pulumi

import boto3

pulumi.export("regions", boto3.session.Session().get_available_regions("s3"))
