"""Asks botocore where a bucket lives.

Its endpoint rules know regions, access points and directory buckets, and it reads the user's settings.
"""

import functools
import logging
from dataclasses import dataclass
from typing import Any

from aiobotocore.config import AioConfig
from aiobotocore.session import AioSession
from botocore.awsrequest import AWSResponse, HTTPHeaders
from botocore.exceptions import (
    BotoCoreError,
    MissingDependencyException,
    ParamValidationError,
    ProfileNotFound,
)
from botocore.loaders import Loader, create_loader

from s3mount.errors import BucketError, CredentialsMissingError, EndpointError
from s3mount.options import AddressingStyle, StoreOptions
from s3mount.store.endpoint import PROBE_KEY, Endpoint, endpoint_from_url

log = logging.getLogger(__name__)

DEFAULT_REGION = "us-east-1"
"""Where nothing names a region; S3 answers with the right one, and other endpoints do not care."""


@dataclass(frozen=True, slots=True)
class Resolved:
    """What botocore knows about a bucket's address."""

    endpoint: Endpoint
    verify: str | bool
    """Path of a CA bundle, or whether to check certificates by the built-in one."""
    user_agent: str


async def resolve_endpoint(options: StoreOptions, *, region: str | None = None) -> Resolved:
    """Find the address of the bucket without a request. Runs on the asyncio loop.

    Args:
        options: What the user said.
        region: Overrides the region, after a server named another.

    Raises:
        BucketError: The name cannot be that of a bucket, or of one that can be mounted.
        CredentialsMissingError: The profile does not exist.
        EndpointError: The endpoint's URL is none.
    """
    try:
        return await _resolve(options, region)
    except ProfileNotFound as error:
        raise CredentialsMissingError(f"{error}: see 'aws configure list-profiles'") from error
    except MissingDependencyException as error:
        raise BucketError(
            f"{options.bucket} is a multi-region access point, which s3mount cannot sign requests for"
        ) from error
    except ParamValidationError as error:
        raise BucketError(f"{options.bucket!r} is neither a bucket's name nor the ARN of an access point") from error
    except BotoCoreError as error:
        raise BucketError(f"cannot tell where {options.bucket!r} is: {' '.join(str(error).split())}") from error
    except ValueError as error:
        raise EndpointError(
            f"{options.endpoint_url!r} is not an endpoint's URL: it has to look like https://host:port"
        ) from error


@functools.cache
def _loader(data_path: str | None) -> Loader:
    """Keeps the service's description, which takes 100 ms to read, for a second look after a wrong region."""
    return create_loader(data_path)


async def _resolve(options: StoreOptions, region: str | None) -> Resolved:
    session = AioSession(profile=options.profile)
    session.register_component("data_loader", _loader(session.get_config_variable("data_path")))
    region = region or options.region or session.get_config_variable("region") or DEFAULT_REGION
    seen: dict[str, Any] = {}

    def capture(*, params: dict[str, Any], context: dict[str, Any], **_: object) -> tuple[AWSResponse, dict[str, Any]]:
        seen.update(params, signing=context.get("signing") or {})
        return AWSResponse(
            params["url"], 200, HTTPHeaders(), None
        ), {}  # answers in the server's place: nothing is sent

    client = session.create_client(
        "s3",
        region_name=region,
        endpoint_url=options.endpoint_url,
        aws_access_key_id="none",  # only the address is asked for
        aws_secret_access_key="none",  # noqa: S106 - as above
        config=AioConfig(s3=_s3_settings(options)),
    )
    async with client as s3:
        s3.meta.events.register("before-call.s3.HeadObject", capture)  # type: ignore[arg-type]  # may return an answer
        await s3.head_object(Bucket=options.bucket, Key=PROBE_KEY)
    signing = seen["signing"]
    endpoint = endpoint_from_url(
        seen["url"], region=signing.get("region") or region, service=signing.get("signing_name") or "s3"
    )
    verify = str(options.ca_bundle) if options.ca_bundle else session.get_config_variable("ca_bundle") or True
    return Resolved(endpoint, verify, seen["headers"].get("User-Agent", "s3mount"))


def _s3_settings(options: StoreOptions) -> dict[str, Any]:
    settings: dict[str, Any] = {
        "us_east_1_regional_endpoint": "regional",
        # Directory buckets take plain signatures too; their sessions would need a renewal of their own.
        "disable_s3_express_session_auth": True,
    }
    if options.addressing_style is not AddressingStyle.AUTO:
        settings["addressing_style"] = options.addressing_style.value
    return settings
