import pytest

from s3mount.source import Source, parse_source

ARN = "arn:aws:s3:eu-west-1:123456789012:accesspoint/my-point"


@pytest.mark.parametrize(
    ("text", "bucket", "prefix"),
    [
        ("s3://bucket", "bucket", ""),
        ("s3://bucket/", "bucket", ""),
        ("bucket", "bucket", ""),
        ("s3://bucket/data", "bucket", "data/"),
        ("s3://bucket/data/", "bucket", "data/"),
        ("s3://bucket//data/", "bucket", "data/"),
        ("s3://bucket/data//", "bucket", "data/"),
        ("s3://bucket/a/b//c", "bucket", "a/b//c/"),
        ("s3://bucket/v1.2", "bucket", "v1.2/"),
        ("s3://bucket/a b%20+ü", "bucket", "a b%20+ü/"),
        ("s3://my.dotted.bucket.v1/x", "my.dotted.bucket.v1", "x/"),
        ("s3://Old_Bucket", "Old_Bucket", ""),
        ("s3://training--use1-az4--x-s3/p", "training--use1-az4--x-s3", "p/"),
        (f"s3://{ARN}", ARN, ""),
        (f"s3://{ARN}/data", ARN, "data/"),
        (ARN, ARN, ""),
        (f"s3://{ARN.replace('point/', 'point:')}/a/b/", ARN.replace("point/", "point:"), "a/b/"),
        (
            "s3://arn:aws:s3-outposts:us-west-2:123456789012:outpost/op-1/accesspoint/p/x",
            "arn:aws:s3-outposts:us-west-2:123456789012:outpost/op-1/accesspoint/p",
            "x/",
        ),
    ],
)
def test_bucket_and_prefix(text: str, bucket: str, prefix: str) -> None:
    assert parse_source(text) == Source(bucket, prefix)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "s3://",
        "s3:///prefix",
        "/mnt/data",
        "./data",
        "ab",
        "s3://a..b",
        "s3://-abc",
        "s3://bücket",
        "s3://bucket name",
        "https://bucket.s3.amazonaws.com",
        "s3://" + "x" * 256,
        "s3://arn:aws:s3:eu-west-1:12:accesspoint/p",
        "s3://arn:aws:s3:::bucket",
        "s3://bucket/" + "x" * 1024,
        "s3://bucket/\udcff",
    ],
)
def test_anything_else_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"bucket|ARN|prefix"):
        parse_source(text)


def test_source_is_shown_without_a_slash_at_its_end() -> None:
    assert Source("bucket", "").uri == "s3://bucket"
    assert Source("bucket", "a/b/").uri == "s3://bucket/a/b"
