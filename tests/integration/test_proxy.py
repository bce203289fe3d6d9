"""The proxy before real servers, which check signatures."""

import dataclasses

import pytest

from tests.support.data import check_coded, coded_bytes
from tests.support.http_heads import Kind
from tests.support.proxy import FaultProxy
from tests.support.servers import S3Server


@pytest.fixture(params=["seaweed", "moto"])
def server(request) -> S3Server:
    return request.getfixturevalue(request.param)


def test_signed_requests_pass(server):
    bucket = server.new_bucket()
    size = 9 * 1024 * 1024 + 5
    with FaultProxy(server.endpoint_url) as proxy:
        client = dataclasses.replace(server, endpoint_url=proxy.endpoint_url).client()
        client.put_object(Bucket=bucket, Key="a b/k", Body=coded_bytes("k", 0, size))
        whole = client.get_object(Bucket=bucket, Key="a b/k")["Body"].read()
        part = client.get_object(Bucket=bucket, Key="a b/k", Range="bytes=1000-1999")["Body"].read()
        listed = client.list_objects_v2(Bucket=bucket, Prefix="a b/")["Contents"]
        head = client.head_object(Bucket=bucket, Key="a b/k")
        client.copy_object(Bucket=bucket, Key="copy", CopySource={"Bucket": bucket, "Key": "a b/k"})
        client.delete_object(Bucket=bucket, Key="copy")
        client.close()
        exchanges = proxy.log.wait_until_idle()

    check_coded(whole, "k", 0, size)
    check_coded(part, "k", 1000, 2000)
    assert [entry["Size"] for entry in listed] == [head["ContentLength"]] == [size]
    assert [exchange.kind for exchange in exchanges] == [
        Kind.PUT,
        Kind.GET,
        Kind.GET,
        Kind.LIST,
        Kind.HEAD,
        Kind.COPY,
        Kind.DELETE,
    ]
    assert {exchange.key for exchange in exchanges} == {"a b/k", "", "copy"}
    assert [exchange.bytes_sent for exchange in exchanges[1:3]] == [size, 1000]
    assert exchanges[0].bytes_received >= size
