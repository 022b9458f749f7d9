"""Ports that nobody else is given."""

from __future__ import annotations

import socket

import pytest

from orchestrator.dispatch.rendezvous import HeldPort, ephemeral_ports, port_elsewhere


def test_a_server_that_names_the_held_port_can_listen_on_it() -> None:
    with HeldPort() as held, socket.socket() as server, socket.socket() as client:
        server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        server.bind(("0.0.0.0", held.port))
        server.listen()
        client.connect(("127.0.0.1", held.port))


def test_held_ports_differ_from_each_other_and_from_any_free_port() -> None:
    held = [HeldPort() for _ in range(50)]
    try:
        ports = {item.port for item in held}
        assert len(ports) == 50
        for _ in range(500):
            with socket.socket() as other:
                other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                other.bind(("127.0.0.1", 0))
                assert other.getsockname()[1] not in ports
    finally:
        for item in held:
            item.close()


def test_a_closed_port_is_given_back() -> None:
    held = HeldPort()
    held.close()
    with socket.socket() as other:
        other.bind(("0.0.0.0", held.port))


def test_somebody_who_does_not_share_addresses_cannot_take_a_held_port() -> None:
    with HeldPort() as held, socket.socket() as other, pytest.raises(OSError):
        other.bind(("0.0.0.0", held.port))


def test_a_port_for_another_machine_is_none_that_a_kernel_hands_out_and_none_in_use() -> None:
    first, last = ephemeral_ports()
    taken: set[int] = set()
    for _ in range(200):
        port = port_elsewhere(taken)
        assert not first <= port <= last
        assert 1024 < port < 65536
        assert port not in taken
        taken.add(port)
