"""Defences of the network rules and of the egress proxy."""

from __future__ import annotations

from tests.mutants import Mutant

MUTANTS = (
    Mutant(
        "only what is listed is reached",
        "air/sandbox/network/egress_proxy.py",
        "if not rules:",
        "if False:",
        ("tests/unit/sandbox/network/test_egress_proxy.py::test_nothing_else_is_reached",),
        "tests/unit/sandbox/network/test_egress_proxy.py::test_a_tunnel_carries_both_ways",
    ),
    Mutant(
        "a listed name leads to public addresses only",
        "air/sandbox/network/egress_proxy.py",
        "if not all(network_rules.permits(address, private=private) for address in addresses):",
        "if False:",
        ("tests/unit/sandbox/network/test_egress_proxy.py::test_nothing_else_is_reached",),
        "tests/unit/sandbox/network/test_egress_proxy.py::test_a_tunnel_carries_both_ways",
    ),
    Mutant(
        "the address that was judged is the one that is reached",
        "air/sandbox/network/egress_proxy.py",
        "_connect(addresses, port), None",
        "_connect([host], port), None",
        (
            "tests/unit/sandbox/network/test_egress_proxy.py::test_a_name_is_resolved_once_and_the_judged_address_is_the_one_reached",
        ),
        "tests/unit/sandbox/network/test_egress_proxy.py::test_a_body_of_unknown_length_is_refused",
    ),
    Mutant(
        "a server is asked for the name that was judged",
        "air/sandbox/network/egress_proxy.py",
        '"upgrade", "host", "expect"',
        '"upgrade", "expect"',
        (
            "tests/unit/sandbox/network/test_egress_proxy.py::test_a_plain_request_is_sent_on_for_its_name_alone",
        ),
        "tests/unit/sandbox/network/test_egress_proxy.py::test_a_tunnel_carries_both_ways",
    ),
    Mutant(
        "a cloud's metadata is never reached",
        "air/sandbox/contract/network_rules.py",
        '"0.0.0.0/8", "169.254.0.0/16", ',
        '"0.0.0.0/8", ',
        (
            "tests/unit/sandbox/network/test_network_rules.py::test_which_addresses_may_be_reached[169.254.169.254]",
            "tests/unit/sandbox/network/test_network_rules.py::test_which_addresses_may_be_reached[169.254.1.1]",
        ),
        "tests/unit/sandbox/network/test_network_rules.py::test_an_entry_allows[example.org-example.org-443-True]",
    ),
    Mutant(
        "a grader's box has no network",
        "air/sandbox/contract/box.py",
        "if self.second_user and self.network:",
        "if False:",
        ("tests/unit/sandbox/network/test_network_rules.py::test_a_graders_box_has_no_network",),
        "tests/unit/sandbox/network/test_network_rules.py::test_an_entry_allows[example.org-example.org-443-True]",
    ),
)
