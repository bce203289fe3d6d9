from pathlib import Path

from s3mount.metrics import Gauge, Metric, RequestKind

ROOT = Path(__file__).resolve().parents[2]


def test_documentation_names_all() -> None:
    text = (ROOT / "docs" / "metrics.md").read_text(encoding="utf-8")

    for name in (*Metric, *Gauge, *RequestKind):
        assert f"| `{name.value}` |" in text
