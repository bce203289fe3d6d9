import socket
from collections import Counter

import pytest

from s3mount.store.addresses import FAILED_SECONDS, FRESH_SECONDS, Address, Addresses, open_socket, resolve


def v4(host: str) -> Address:
    return (socket.AF_INET, (host, 443))


A, B, C = v4("192.0.2.1"), v4("192.0.2.2"), (socket.AF_INET6, ("2001:db8::1", 443, 0, 0))


class Network:
    """Answers DNS questions, and connects or refuses."""

    def __init__(self, *addresses: Address) -> None:
        self.addresses = list(addresses)
        self.refusing: set[Address] = set()
        self.questions = 0
        self.attempts: list[Address] = []
        self.timeouts: list[float] = []
        self.now = 0.0
        self.seconds_per_attempt = 0.0

    def resolve(self, host: str, port: int) -> list[Address]:
        assert (host, port) == ("s3.example", 443)
        self.questions += 1
        if not self.addresses:
            raise OSError("no such host")
        return self.addresses

    def open_socket(self, address: Address, timeout_seconds: float) -> socket.socket:
        self.attempts.append(address)
        self.timeouts.append(timeout_seconds)
        self.now += self.seconds_per_attempt
        if address in self.refusing:
            raise ConnectionRefusedError
        return socket.socket()

    def clock(self) -> float:
        return self.now


def connect(addresses: Addresses, times: int = 1) -> None:
    for _ in range(times):
        addresses.connect("s3.example", 443, 4.0).close()


def known(network: Network) -> Addresses:
    return Addresses(network.resolve, network.open_socket, network.clock)


def test_connections_are_spread_over_all_addresses_of_both_families():
    network = Network(A, B, C)
    connect(known(network), 30)

    assert Counter(network.attempts) == {A: 10, B: 10, C: 10}
    assert network.questions == 1


def test_an_address_that_refuses_is_passed_over_and_comes_last_for_a_while():
    network = Network(A, B)
    network.refusing = {A}
    addresses = known(network)
    connect(addresses, 5)

    assert network.attempts == [A, B, B, B, B, B]

    network.refusing = set()
    network.now = FAILED_SECONDS
    connect(addresses)
    assert network.attempts[-1] == A


def test_a_failure_has_the_name_asked_for_at_once():
    network = Network(A)
    addresses = known(network)
    connect(addresses)
    network.refusing, network.addresses = {A}, [B]
    connect(addresses)

    assert network.questions == 2
    assert network.attempts == [A, A, B]


def test_a_name_is_asked_for_anew_after_a_while_and_new_addresses_get_their_share():
    network = Network(A)
    addresses = known(network)
    connect(addresses, 10)
    network.now, network.addresses = FRESH_SECONDS, [A, B]
    connect(addresses, 10)

    assert network.questions == 2
    assert Counter(network.attempts[10:]) == {A: 5, B: 5}


def test_without_an_answer_the_known_addresses_are_used():
    network = Network(A)
    addresses = known(network)
    connect(addresses)
    network.now, network.addresses = FRESH_SECONDS, []
    connect(addresses)

    assert network.attempts == [A, A]


def test_a_name_without_addresses_is_an_error():
    with pytest.raises(OSError, match="no such host"):
        connect(known(Network()))


def test_when_all_refuse_the_error_is_that_of_the_last():
    network = Network(A, B)
    network.refusing = {A, B}

    with pytest.raises(ConnectionRefusedError):
        connect(known(network))

    assert network.attempts == [A, B]


def test_an_address_that_does_not_answer_leaves_time_for_another():
    network = Network(A, B)
    network.refusing, network.seconds_per_attempt = {A}, 2.0
    connect(known(network))

    assert network.timeouts == [2.0, 2.0]


def test_the_system_resolves_names_and_connects():
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        (address,) = resolve("127.0.0.1", port)
        with open_socket(address, 1.0) as sock:
            assert sock.getpeername() == ("127.0.0.1", port)
