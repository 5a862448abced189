"""Parts of an AWS account that moto lacks: internet gateways and SkyPilot's profile."""

from __future__ import annotations

import json
from functools import partial
from typing import Any

import boto3
from e2e.fake_aws.catalog import REGIONS
from e2e.fake_aws.paths import AWS, AWS_ENVIRONMENT

PROFILE = "skypilot-v1"
_TRUST = {
    "Version": "2012-10-17",
    "Statement": [
        {
            "Effect": "Allow",
            "Principal": {"Service": "ec2.amazonaws.com"},
            "Action": "sts:AssumeRole",
        }
    ],
}


def client(service: str, region: str | None = None) -> Any:
    """Return a client of the fake AWS for this process."""
    connect: Any = boto3.client  # The stubs have one overload for each of 400 services.
    return connect(
        service,
        region_name=region or AWS_ENVIRONMENT["AWS_DEFAULT_REGION"],
        endpoint_url=AWS,
        aws_access_key_id=AWS_ENVIRONMENT["AWS_ACCESS_KEY_ID"],
        aws_secret_access_key=AWS_ENVIRONMENT["AWS_SECRET_ACCESS_KEY"],
    )


def furnish() -> str:
    """Prepare the account for SkyPilot; return the id of a machine image that all regions share."""
    for region in REGIONS:
        _open(client("ec2", region))
    _profile(client("iam"))
    found = [_images(client("ec2", region)) for region in REGIONS]
    return min(set.intersection(*found))


def _open(ec2: Any) -> None:
    """Add an internet gateway to the default network, without which all subnets are private."""
    is_default = [{"Name": "isDefault", "Values": ["true"]}]
    network = ec2.describe_vpcs(Filters=is_default)["Vpcs"][0]["VpcId"]
    gateway = ec2.create_internet_gateway()["InternetGateway"]["InternetGatewayId"]
    ec2.attach_internet_gateway(InternetGatewayId=gateway, VpcId=network)
    main = [
        {"Name": "vpc-id", "Values": [network]},
        {"Name": "association.main", "Values": ["true"]},
    ]
    table = ec2.describe_route_tables(Filters=main)["RouteTables"][0]["RouteTableId"]
    route = partial(ec2.create_route, RouteTableId=table, GatewayId=gateway)
    route(DestinationCidrBlock="0.0.0.0/0")


def _profile(iam: Any) -> None:
    """Create the instance profile; SkyPilot would sleep 15 s after it had created one."""
    iam.create_instance_profile(InstanceProfileName=PROFILE)
    iam.create_role(RoleName=PROFILE, AssumeRolePolicyDocument=json.dumps(_TRUST))
    for policy in ("AmazonEC2FullAccess", "AmazonS3FullAccess"):
        arn = f"arn:aws:iam::aws:policy/{policy}"
        iam.attach_role_policy(RoleName=PROFILE, PolicyArn=arn)
    iam.add_role_to_instance_profile(InstanceProfileName=PROFILE, RoleName=PROFILE)


def _images(ec2: Any) -> set[str]:
    found = ec2.describe_images(Owners=["amazon"])["Images"]
    return {
        image["ImageId"]
        for image in found
        if image.get("RootDeviceName") and image.get("BlockDeviceMappings")
    }
