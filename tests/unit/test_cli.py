import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import click
import pytest

from s3mount import cli, control, launch, mountpoint
from s3mount.cli_options import PARAMETERS
from s3mount.cli_types import GroupedOption
from s3mount.control import Reply
from s3mount.errors import BucketError, DaemonError, FuseUnavailableError, MountError
from s3mount.handover import Ready
from s3mount.mountinfo import Mount
from s3mount.options import AddressingStyle, LogLevel, MountOptions
from s3mount.ranges import GIB, MIB

ROOT = Path(__file__).resolve().parents[2]


@dataclass
class World:
    """What stands in for the kernel and the daemon."""

    folder: Path
    started: list[MountOptions] = field(default_factory=list)
    failure: BaseException | None = None
    memory_bytes: int = 64 * GIB

    @property
    def place(self) -> str:
        return str(self.folder / "mnt")

    @property
    def options(self) -> MountOptions:
        (options,) = self.started
        return options

    def mount(self, *options: str, source: str = "s3://bucket") -> int:
        return cli.main(["mount", source, self.place, *options])


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    world = World(tmp_path)
    (tmp_path / "mnt").mkdir()

    def start(options: MountOptions) -> Ready:
        world.started.append(options)
        if world.failure is not None:
            raise world.failure
        return Ready("the log")

    monkeypatch.setattr(launch, "start", start)
    monkeypatch.setattr(mountpoint, "check_fuse", lambda **_: None)
    monkeypatch.setattr(control, "runtime_folders", lambda _uid, _environment: [tmp_path / "run"])
    monkeypatch.setattr(cli, "usable_memory", lambda: world.memory_bytes)
    for name in os.environ:
        if name.startswith(("S3MOUNT_", "AWS_")):
            monkeypatch.delenv(name)
    return world


class TestDefaults:
    def test_nothing_given(self, world: World, capsys: pytest.CaptureFixture[str]) -> None:
        assert world.mount() == 0

        options = world.options
        assert (options.store.bucket, options.namespace.prefix) == ("bucket", "")
        assert options.mount_point.path == Path(world.place)
        assert options.mount_point.source == "s3://bucket"
        assert (options.namespace.ttl_seconds, options.namespace.negative_ttl_seconds) == (60, 5)
        assert (options.namespace.uid, options.namespace.gid) == (os.getuid(), os.getgid())
        assert (options.namespace.file_mode, options.namespace.dir_mode) == (0o644, 0o755)
        assert options.read.memory_bytes == 512 * MIB
        assert options.read.max_readahead_bytes == 256 * MIB
        assert options.store.endpoint_url is None
        assert options.store.region is None
        assert not options.mount_point.allow_other
        assert options.log.level is LogLevel.INFO
        captured = capsys.readouterr()
        assert captured.out == f"s3mount: s3://bucket is mounted at {world.place} (log: the log)\n"
        assert captured.err == ""

    def test_cli_and_options_agree_on_defaults(self, world: World) -> None:
        world.mount()

        default = MountOptions(store=world.options.store, mount_point=world.options.mount_point)
        assert world.options.store == type(world.options.store)(bucket="bucket")
        assert world.options.namespace.ttl_seconds == default.namespace.ttl_seconds
        assert world.options.namespace.negative_ttl_seconds == default.namespace.negative_ttl_seconds
        assert world.options.namespace.file_mode == default.namespace.file_mode
        assert world.options.namespace.dir_mode == default.namespace.dir_mode
        assert world.options.read == default.read
        assert world.options.log.level == default.log.level


Pick = Callable[[MountOptions], object]

EACH_OPTION: list[tuple[str, str, Pick, object]] = [
    ("--endpoint-url", "http://minio:9000/", lambda o: o.store.endpoint_url, "http://minio:9000"),
    ("--region", "eu-north-1", lambda o: o.store.region, "eu-north-1"),
    ("--profile", "lab", lambda o: o.store.profile, "lab"),
    ("--expected-bucket-owner", "123456789012", lambda o: o.store.expected_bucket_owner, "123456789012"),
    ("--addressing-style", "path", lambda o: o.store.addressing_style, AddressingStyle.PATH),
    ("--ca-bundle", str(Path(__file__)), lambda o: o.store.ca_bundle, Path(__file__)),
    ("--uid", "1234", lambda o: o.namespace.uid, 1234),
    ("--gid", "2345", lambda o: o.namespace.gid, 2345),
    ("--file-mode", "0600", lambda o: o.namespace.file_mode, 0o600),
    ("--dir-mode", "0700", lambda o: o.namespace.dir_mode, 0o700),
    ("--umask", "027", lambda o: (o.namespace.file_mode, o.namespace.dir_mode), (0o640, 0o750)),
    ("--ttl", "5m", lambda o: o.namespace.ttl_seconds, 300),
    ("--negative-ttl", "0", lambda o: o.namespace.negative_ttl_seconds, 0),
    ("--memory", "1G", lambda o: o.read.memory_bytes, GIB),
    ("--connections", "7", lambda o: o.store.connections, 7),
    ("--max-readahead", "8MiB", lambda o: o.read.max_readahead_bytes, 8 * MIB),
    ("--request-deadline", "90", lambda o: o.store.request_deadline_seconds, 90),
    ("--log-level", "debug", lambda o: o.log.level, LogLevel.DEBUG),
    ("--log-file", "/var/log/x.log", lambda o: o.log.file, Path("/var/log/x.log")),
]

EACH_FLAG: list[tuple[str, Pick]] = [
    ("--no-sign-request", lambda o: o.store.no_sign_request),
    ("--requester-pays", lambda o: o.store.requester_pays),
    ("--allow-other", lambda o: o.mount_point.allow_other),
    ("--read-only", lambda _: True),
    ("--allow-non-empty", lambda _: True),
]


def variable(option: str) -> str:
    return f"S3MOUNT_{option[2:].replace('-', '_').upper()}"


@pytest.fixture
def allow_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mountpoint, "check_allow_other", lambda **_: None)


@pytest.mark.usefixtures("allow_other")
class TestEachOption:
    def test_all_are_tested(self) -> None:
        tested = {option for option, *_ in [*EACH_OPTION, *EACH_FLAG]} | {"--config", "--foreground"}

        assert tested == {parameter.opts[0] for parameter in PARAMETERS if isinstance(parameter, click.Option)}

    @pytest.mark.parametrize(("option", "text", "pick", "value"), EACH_OPTION)
    def test_on_the_command_line(self, world: World, option: str, text: str, pick: Pick, value: object) -> None:
        assert world.mount(option, text) == 0
        assert pick(world.options) == value

    @pytest.mark.parametrize(("option", "text", "pick", "value"), EACH_OPTION)
    def test_in_the_environment(
        self, world: World, monkeypatch: pytest.MonkeyPatch, option: str, text: str, pick: Pick, value: object
    ) -> None:
        monkeypatch.setenv(variable(option), text)

        assert world.mount() == 0
        assert pick(world.options) == value

    @pytest.mark.parametrize(("option", "text", "pick", "value"), EACH_OPTION)
    def test_in_the_configuration_file(self, world: World, option: str, text: str, pick: Pick, value: object) -> None:
        config = world.folder / "c.toml"
        config.write_text(f"[mount]\n{option[2:]} = {json.dumps(text)}\n")

        assert world.mount("--config", str(config)) == 0
        assert pick(world.options) == value

    @pytest.mark.parametrize(("flag", "pick"), EACH_FLAG)
    def test_flags(self, world: World, monkeypatch: pytest.MonkeyPatch, flag: str, pick: Pick) -> None:
        config = world.folder / "c.toml"
        config.write_text(f"{flag[2:]} = true\n")

        assert world.mount(flag) == 0
        assert world.mount("--config", str(config)) == 0
        monkeypatch.setenv(variable(flag), "1")
        assert world.mount() == 0

        assert [pick(options) for options in world.started] == [True, True, True]


class TestPrecedence:
    @pytest.fixture
    def config(self, world: World) -> str:
        path = world.folder / "c.toml"
        path.write_text('ttl = "10s"\nconnections = 11\nregion = "in-file"\n')
        return str(path)

    def test_file_wins_over_default(self, world: World, config: str) -> None:
        world.mount("--config", config)

        assert world.options.namespace.ttl_seconds == 10
        assert world.options.store.connections == 11

    def test_environment_wins_over_file(self, world: World, config: str, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("S3MOUNT_TTL", "20")

        world.mount("--config", config)

        assert world.options.namespace.ttl_seconds == 20

    def test_command_line_wins_over_environment(
        self, world: World, config: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("S3MOUNT_TTL", "20")

        world.mount("--config", config, "--ttl", "30")

        assert world.options.namespace.ttl_seconds == 30

    def test_empty_variable_counts_as_unset(self, world: World, config: str, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("S3MOUNT_TTL", "")

        world.mount("--config", config)

        assert world.options.namespace.ttl_seconds == 10

    def test_file_can_be_named_by_the_environment(
        self, world: World, config: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("S3MOUNT_CONFIG", config)

        world.mount()

        assert world.options.namespace.ttl_seconds == 10

    def test_region_of_aws_tools_counts_as_environment(
        self, world: World, config: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("AWS_REGION", "from-aws")
        world.mount("--config", config)
        monkeypatch.setenv("S3MOUNT_REGION", "from-us")
        world.mount("--config", config)

        assert [options.store.region for options in world.started] == ["from-aws", "from-us"]

    def test_numbers_in_the_file_need_no_quotes(self, world: World) -> None:
        path = world.folder / "n.toml"
        path.write_text("ttl = 1.5\nmemory = 67108864\n")

        world.mount("--config", str(path))

        assert world.options.namespace.ttl_seconds == 1.5
        assert world.options.read.memory_bytes == 64 * MIB


class TestSource:
    @pytest.mark.parametrize("source", ["s3://bucket/data", "s3://bucket/data/", "s3://bucket//data/", "bucket/data"])
    def test_prefix_may_have_slashes_around_it(self, world: World, source: str) -> None:
        assert world.mount(source=source) == 0
        assert world.options.namespace.prefix == "data/"
        assert world.options.mount_point.source == "s3://bucket/data"


class TestMemory:
    def test_default_follows_the_memory_there_is(self, world: World) -> None:
        world.memory_bytes = GIB

        world.mount()

        assert world.options.read.memory_bytes == 256 * MIB

    def test_too_much_is_cut_with_a_warning(self, world: World, capsys: pytest.CaptureFixture[str]) -> None:
        world.memory_bytes = 4 * GIB

        assert world.mount("--memory", "8GiB") == 0

        assert world.options.read.memory_bytes == GIB
        assert capsys.readouterr().err == (
            "s3mount: warning: --memory 8GiB is more than a quarter of the memory there is: using 1GiB\n"
        )


class TestMistakes:
    @pytest.mark.parametrize(
        ("arguments", "line"),
        [
            (["--ttl", "soon"], "--ttl: 'soon' is not a duration such as 30, 30s, 5m or 1h"),
            (["--ttl=-1"], "--ttl: '-1' is not a duration such as 30, 30s, 5m or 1h"),
            (["--memory", "some"], "--memory: 'some' is not a size such as 512MiB, 1G or 1073741824"),
            (["--memory", "1MiB"], "--memory: at least 32MiB is needed"),
            (["--umask", "089"], "--umask: '089' is not an octal mode such as 0644"),
            (["--uid", "-1"], "--uid: -1 is not in the range 0<=x<=4294967294."),
            (["--connections", "0"], "--connections: 0 is not in the range 1<=x<=1024."),
            (["--request-deadline", "0"], "--request-deadline: '0' is less than a second"),
            (
                ["--endpoint-url", "minio:9000"],
                "--endpoint-url: 'minio:9000' does not look like https://HOST or http://HOST:PORT",
            ),
            (
                ["--endpoint-url", "http://"],
                "--endpoint-url: 'http://' does not look like https://HOST or http://HOST:PORT",
            ),
            (
                ["--endpoint-url", "http://me:secret@h"],
                "--endpoint-url: a URL must not hold credentials: use AWS_ACCESS_KEY_ID or a profile",
            ),
            (["--expected-bucket-owner", "12"], "--expected-bucket-owner: '12' is not an account id of 12 digits"),
            (["--ca-bundle", "/no/such"], "--ca-bundle: File '/no/such' does not exist."),
            (["--addressing-style", "x"], "--addressing-style: 'x' is not one of 'auto', 'path', 'virtual'."),
        ],
    )
    def test_value_is_wrong(
        self, world: World, capsys: pytest.CaptureFixture[str], arguments: list[str], line: str
    ) -> None:
        assert world.mount(*arguments) == 2
        assert capsys.readouterr() == ("", f"s3mount: {line}\n")
        assert not world.started

    def test_value_in_the_environment_is_wrong(
        self, world: World, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("S3MOUNT_TTL", "soon")

        assert world.mount() == 2
        assert capsys.readouterr().err.endswith(" (from S3MOUNT_TTL)\n")

    @pytest.mark.parametrize(
        ("text", "end"),
        [
            ('ttl = "soon"\n', "--ttl: 'soon' is not a duration such as 30, 30s, 5m or 1h (in {path})\n"),
            ("file-mode = 644\n", '--file-mode: write it as a text, such as "0644" (in {path})\n'),
            ("tll = 1\n", "{path}: unknown key 'tll'; keys are the long options of 's3mount mount'\n"),
            ('config = "x"\n', "{path}: unknown key 'config'; keys are the long options of 's3mount mount'\n"),
            ('source = "x"\n', "{path}: unknown key 'source'; keys are the long options of 's3mount mount'\n"),
        ],
    )
    def test_value_in_the_file_is_wrong(
        self, world: World, capsys: pytest.CaptureFixture[str], text: str, end: str
    ) -> None:
        path = world.folder / "c.toml"
        path.write_text(text)

        assert world.mount("--config", str(path)) == 2
        assert capsys.readouterr().err == "s3mount: " + end.format(path=path)

    @pytest.mark.parametrize(
        ("arguments", "fragment"),
        [
            (["mount"], "Missing argument 's3://BUCKET[/PREFIX]'"),
            (["mount", "s3://bucket"], "Missing argument 'MOUNTPOINT'"),
            (["mount", "/mnt", "s3://bucket"], "'/mnt' does not name a bucket"),
            (["mount", "s3://bucket", "/mnt", "--tll=3"], "No such option"),
            (["mount", "s3://bucket", "/mnt", "more"], "unexpected extra argument"),
            (["explode"], "No such command"),
            (["completion", "csh"], "'csh' is not one of"),
        ],
    )
    def test_command_line_is_wrong(
        self, capsys: pytest.CaptureFixture[str], arguments: list[str], fragment: str
    ) -> None:
        assert cli.main(arguments) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert line.startswith("s3mount: ")
        assert fragment in line

    def test_no_command_shows_the_help(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert cli.main([]) == 2
        assert "Commands:" in capsys.readouterr().err


class TestFailures:
    @pytest.mark.parametrize("error", [BucketError("no bucket"), FuseUnavailableError("no fuse"), MountError("x")])
    def test_one_line_and_the_exit_code(
        self, world: World, capsys: pytest.CaptureFixture[str], error: MountError
    ) -> None:
        world.failure = error

        assert world.mount() == error.exit_code
        assert capsys.readouterr() == ("", f"s3mount: {error}\n")

    def test_interrupt(self, world: World, capsys: pytest.CaptureFixture[str]) -> None:
        world.failure = KeyboardInterrupt()

        assert world.mount() == 130
        assert capsys.readouterr().err.strip() == "s3mount: interrupted"

    def test_defect_names_its_place_without_a_traceback(self, world: World, capsys: pytest.CaptureFixture[str]) -> None:
        world.failure = ZeroDivisionError("x")

        assert world.mount() == 70
        (line,) = capsys.readouterr().err.splitlines()
        assert line.startswith("s3mount: internal error: ZeroDivisionError('x') (test_cli.py:")

    def test_reader_of_the_output_is_gone(self, world: World) -> None:
        world.failure = BrokenPipeError()

        assert world.mount() == 1

    def test_allow_other_without_permission(self, world: World, monkeypatch: pytest.MonkeyPatch) -> None:
        def refuse(**_: object) -> None:
            raise FuseUnavailableError("write it")

        monkeypatch.setattr(mountpoint, "check_allow_other", refuse)

        assert world.mount("--allow-other") == 4
        assert world.mount() == 0

    def test_what_was_cleaned_is_told(
        self, world: World, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(mountpoint, "check_place", lambda *_, **__: "detached the dead one")

        assert world.mount() == 0
        assert capsys.readouterr().err == "s3mount: detached the dead one\n"


class TestForeground:
    def test_it_becomes_the_daemon_and_holds_the_lock(self, world: World, monkeypatch: pytest.MonkeyPatch) -> None:
        became = []

        def become(options: MountOptions, *, lock_descriptor: int) -> None:
            became.append(options)
            os.fstat(lock_descriptor)
            raise SystemExit(0)

        monkeypatch.setattr(launch, "become_daemon", become)

        with pytest.raises(SystemExit):
            world.mount("--foreground")

        assert became[0].log.foreground
        assert not world.started


class TestStatusAndUnmount:
    @pytest.fixture
    def found(self, world: World, monkeypatch: pytest.MonkeyPatch) -> Mount:
        mount = Mount(Path(world.place), "fuse.s3mount", "s3://bucket", os.getuid())
        monkeypatch.setattr(mountpoint, "find_own_mount", lambda _: mount)
        return mount

    def test_status_as_text_and_as_json(
        self, world: World, found: Mount, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(control, "ask", lambda *_, **__: Reply({"source": "s3://bucket", "pid": 3}, 3))

        assert cli.main(["status", world.place]) == 0
        assert capsys.readouterr().out.startswith("s3://bucket on")
        assert cli.main(["status", world.place, "--json"]) == 0
        assert json.loads(capsys.readouterr().out) == {"source": "s3://bucket", "pid": 3}

    def test_status_of_a_dead_daemon(self, world: World, found: Mount, capsys: pytest.CaptureFixture[str]) -> None:
        assert cli.main(["status", world.place]) == DaemonError.exit_code
        assert (
            capsys.readouterr().err == f"s3mount: no daemon answers for {world.place}: s3mount unmount {world.place}\n"
        )

    def test_status_and_unmount_of_nothing(self, world: World, capsys: pytest.CaptureFixture[str]) -> None:
        for command in ("status", "unmount"):
            assert cli.main([command, world.place]) == 8
            assert capsys.readouterr().err == f"s3mount: nothing is mounted at {world.place}\n"

    def test_unmount_tells_what_it_did(
        self, world: World, found: Mount, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        calls = []

        def unmount(path: Path, *, lazy: bool, daemon_pid: int | None) -> str:
            calls.append((path, lazy, daemon_pid))
            return "done"

        monkeypatch.setattr(mountpoint, "unmount", unmount)

        assert cli.main(["unmount", world.place, "--lazy"]) == 0
        assert calls == [(Path(world.place), True, None)]
        assert capsys.readouterr().out == "s3mount: done\n"


class TestTexts:
    def test_version(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert cli.main(["--version"]) == 0
        assert capsys.readouterr().out.startswith("s3mount 0.")

    def test_help_teaches(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert cli.main(["mount", "--help"]) == 0
        text = capsys.readouterr().out
        for parameter in PARAMETERS:
            if isinstance(parameter, GroupedOption):
                assert f"{parameter.opts[0]} " in text
                assert parameter.variables[0] in text
        assert "default: 60s" in text
        assert "  s3mount mount s3://training-data /mnt/data\n" in text

    @pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
    def test_completion(self, capsys: pytest.CaptureFixture[str], shell: str) -> None:
        assert cli.main(["completion", shell]) == 0
        assert "_S3MOUNT_COMPLETE" in capsys.readouterr().out

    def test_documentation_names_all_options_and_exit_codes(self) -> None:
        text = (ROOT / "docs" / "configuration.md").read_text(encoding="utf-8")

        for parameter in PARAMETERS:
            if isinstance(parameter, GroupedOption):
                assert f"| `{parameter.opts[0]}` |" in text
                assert all(f"`{name}`" in text for name in parameter.variables)
        for error in MountError.__subclasses__():
            if error.__module__ == MountError.__module__:
                assert f"| {error.exit_code} |" in text


class TestWeight:
    def test_command_does_not_load_what_the_daemon_needs(self) -> None:
        code = (
            "import sys, s3mount.cli; "
            "print([name for name in ('trio', 'pyfuse3', 'botocore', 'aiobotocore', 'asyncio') if name in sys.modules])"
        )

        done = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT, timeout=30
        )

        assert done.stdout == "[]\n"
