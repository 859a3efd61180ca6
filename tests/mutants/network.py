"""What keeps a box to the names that it may reach, and a relay within its bounds."""

from __future__ import annotations

from tests.mutants import Mutant, as_process

_GUEST = "air/sandbox/guest/relay.py"
_RELAY = "air/sandbox/wire/port_relay.py"
_WIRE = "air/sandbox/wire/connection.py"
_ALLOW = "air/sandbox/network/egress_proxy.py"
_NAMES = "air/sandbox/contract/network_rules.py"
_RELAY_TESTS = "tests/unit/sandbox/test_relay.py"
_ALLOW_TESTS = "tests/unit/sandbox/test_allow.py"
_NAMES_TESTS = "tests/unit/sandbox/test_names.py"
_RULES = f"{_RELAY_TESTS}::test_a_guest_that_breaks_the_rules_loses_its_box"
_RELAYED = as_process("its-ports-are-answered-by-the-harness")[0]
_TUNNEL = f"{_ALLOW_TESTS}::test_a_tunnel_carries_both_ways"
_ADDRESSES = f"{_NAMES_TESTS}::test_which_addresses_may_be_reached"
_ALLOWED = f"{_NAMES_TESTS}::test_an_entry_allows[example.org-example.org-443-True]"
_NOTHING_ELSE = f"{_ALLOW_TESTS}::test_nothing_else_is_reached"

_RELAYS = (
    Mutant(
        "so many connections at once are accepted and no more",
        _GUEST,
        "        if len(self.streams) >= self.most:\n            return\n",
        "",
        as_process("two-hundred-connections-at-once-are-bounded-and-all-are-served"),
        _RELAYED,
    ),
    Mutant(
        "a guest sends no more than the harness gave room for",
        _GUEST,
        "            stream.credit -= len(data)\n",
        "",
        as_process("ten-megabytes-pass-each-way-while-commands-answer"),
        _RELAYED,
    ),
    Mutant(
        "a relayed port is the box's own",
        _GUEST,
        'bind(("127.0.0.1"',
        'bind(("0.0.0.0"',
        (f"{_RELAY_TESTS}::test_a_port_is_reached_from_its_own_machine_only",),
        _RELAYED,
    ),
    Mutant(
        "what no handler reads is not asked for",
        _RELAY,
        "if self._reading and not self._closing and self._owed",
        "if not self._closing and self._owed",
        as_process("what-no-handler-reads-is-not-kept"),
        _RELAYED,
    ),
    Mutant(
        "a program that never reads is sent no more than it has room for",
        _RELAY,
        "            self._credit -= len(piece)\n",
        "",
        as_process("a-program-that-never-reads-stops-its-handler-and-nothing-else"),
        _RELAYED,
    ),
    Mutant(
        "a guest that sends more than it may loses its box",
        _RELAY,
        " or len(body) > self._room",
        "",
        (f"{_RULES}[frames5]",),
        _RELAYED,
    ),
    Mutant(
        "a guest that opens more than it may loses its box",
        _RELAY,
        " or len(self._transports) >= CONNECTIONS",
        "",
        (f"{_RULES}[frames4]",),
        _RELAYED,
    ),
    Mutant(
        "connections in a loop are held to a rate",
        _RELAY,
        "        await asyncio.sleep(free_at - loop.time())\n",
        "",
        (f"{_RELAY_TESTS}::test_connections_in_a_loop_are_held_to_a_rate",),
        _RELAYED,
    ),
    Mutant(
        "a box that closes ends its connections",
        _WIRE,
        "            await self.relay.close()\n",
        "            pass\n",
        (f"{_RELAY_TESTS}::test_a_box_that_closes_frees_every_connection",),
        _RELAYED,
    ),
    Mutant(
        "a guest that lives and is silent does not keep its box open",
        _WIRE,
        " and self._reader.at_eof()",
        "",
        (f"{_RULES}[frames0]",),
        _RELAYED,
    ),
)
_LISTED = (
    Mutant(
        "only what is listed is reached",
        _ALLOW,
        "if not rules:",
        "if False:",
        (_NOTHING_ELSE,),
        _TUNNEL,
    ),
    Mutant(
        "no address is reached by its number",
        _ALLOW,
        "if network_rules.is_address(host):",
        "if False:",
        (_NOTHING_ELSE,),
        _TUNNEL,
    ),
    Mutant(
        "a listed name leads to public addresses only",
        _ALLOW,
        "if not all(network_rules.permits(address, private=private) for address in found):",
        "if False:",
        (_NOTHING_ELSE,),
        _TUNNEL,
    ),
    Mutant(
        "the address that was judged is the one that is reached",
        _ALLOW,
        "_connect(found, port), None",
        "_connect([host], port), None",
        (
            f"{_ALLOW_TESTS}"
            "::test_a_name_is_resolved_once_and_the_judged_address_is_the_one_reached",
        ),
        f"{_ALLOW_TESTS}::test_a_body_of_unknown_length_is_refused",
    ),
    Mutant(
        "nothing is sent on past a request's body",
        _ALLOW,
        "source.read(min(port_relay.PIECE, left))",
        "source.read(port_relay.PIECE)",
        (f"{_ALLOW_TESTS}::test_nothing_is_smuggled_past_a_body_to_the_hosts_own_proxy",),
        _TUNNEL,
    ),
    Mutant(
        "a server is asked for the name that was judged",
        _ALLOW,
        '"upgrade", "host", "expect"',
        '"upgrade", "expect"',
        (f"{_ALLOW_TESTS}::test_a_plain_request_is_sent_on_for_its_name_alone",),
        _TUNNEL,
    ),
    Mutant(
        "a body of unknown length is refused",
        _ALLOW,
        'if any(name == "transfer-encoding" for name, _, _ in by_name):',
        "if False:",
        (f"{_ALLOW_TESTS}::test_a_body_of_unknown_length_is_refused",),
        _TUNNEL,
    ),
    Mutant(
        "a private server is not asked for of the host's own proxy",
        _ALLOW,
        "None if private or self._direct(",
        "None if self._direct(",
        (f"{_ALLOW_TESTS}::test_the_hosts_own_proxy_is_left_out_where_it_should_be",),
        _TUNNEL,
    ),
    Mutant(
        "a cloud's metadata is never reached",
        _NAMES,
        '"0.0.0.0/8", "169.254.0.0/16", ',
        '"0.0.0.0/8", ',
        (f"{_ADDRESSES}[169.254.169.254]", f"{_ADDRESSES}[169.254.1.1]"),
        _ALLOWED,
    ),
    Mutant(
        "an address of version 4 behind a gateway is judged as such",
        _NAMES,
        "if found in _NAT64:",
        "if False:",
        (f"{_ADDRESSES}[64:ff9b::7f00:1]", f"{_ADDRESSES}[64:ff9b::101:101]"),
        _ALLOWED,
    ),
    Mutant(
        "a listed domain is not the end of another's name",
        _NAMES,
        'endswith(f".{self.name}")',
        "endswith(self.name)",
        (f"{_NAMES_TESTS}::test_an_entry_allows[*.example.org-badexample.org-443-False]",),
        _ALLOWED,
    ),
    Mutant(
        "a grader's box has no network",
        "air/sandbox/contract/box.py",
        "if self.second_user and self.network:",
        "if False:",
        (f"{_NAMES_TESTS}::test_a_graders_box_has_no_network",),
        _ALLOWED,
    ),
    Mutant(
        "a task's network is its agents' and not its graders'",
        "air/tasks/spec.py",
        "scratch=(GRADER_DIR,),",
        "scratch=(GRADER_DIR,), network=self.network,",
        (
            "tests/unit/tasks/test_spec.py"
            "::test_the_agents_box_reaches_the_listed_names_and_the_graders_none[data]",
        ),
        "tests/unit/tasks/test_spec.py::test_the_shipped_tasks_are_there",
    ),
)
MUTANTS = (*_RELAYS, *_LISTED)
