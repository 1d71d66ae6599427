"""Machines on a network of namespaces try to reach each other: what is broken is named."""

import pytest
from network_namespaces import Network
from probing_machine import ProbingMachines

from quire.errors import SettingsError
from quire.launch.workers.nodes.reachability import ANOTHER, ProbeTarget, check_reachability

LIMIT_S = 1.5
LATE = "no answer within 1.5 s"
REFUSED = "Connection refused"


@pytest.fixture(scope="module")
def whole_network():
    with Network(3) as network:
        yield network


@pytest.fixture
def network(whole_network):
    yield whole_network
    whole_network.repair()


def found(network, *hosts):
    """The reasons that each machine has for each, if they offer these addresses."""
    with ProbingMachines(network.machines, hosts) as machines:
        targets = machines.targets()
        assert [target.host for target in targets] == list(hosts)
        return machines.reasons(targets, LIMIT_S)


def addresses(network):
    return [machine.address for machine in network.machines]


def test_machines_of_one_network_reach_each_other(network):
    assert found(network, *addresses(network)) == [[None] * 3] * 3


def test_a_delay_within_the_limit_does_not_matter(network):
    network.change(delay_s=0.2)
    assert found(network, *addresses(network)) == [[None] * 3] * 3


def test_a_link_that_is_cut_one_way_ends_the_probes_of_both_sides(network):
    first, second, _ = network.machines
    network.change(second, first, is_cut=True, one_way=True)
    assert found(network, *addresses(network)) == [
        [None, LATE, None],
        [LATE, None, None],
        [None, None, None],
    ]


def test_a_loopback_address_is_reached_by_its_own_machine_only(network):
    first, _, third = addresses(network)
    reasons = found(network, first, "127.0.0.1", third)
    assert reasons == [[None, REFUSED, None], [None] * 3, [None, REFUSED, None]]


def test_one_address_of_two_machines_is_not_taken_for_the_others(network):
    """As that of the bridge of containers, which each machine has."""
    with ProbingMachines(network.machines, ["127.0.0.1"] * 3) as machines:
        targets = machines.targets()
        port = targets[0].port
        mistaken = [ProbeTarget("127.0.0.1", port, target.token) for target in targets]
        assert machines.reasons(mistaken, LIMIT_S)[0] == [None, ANOTHER, ANOTHER]


def test_an_interface_that_leads_to_no_other_machine_is_found_in_either_order(network):
    first, second, third = network.machines
    reasons = found(network, first.other_address, second.address, third.address)
    assert reasons == [[None] * 3, [LATE, None, None], [LATE, None, None]]
    names = ["ranks 0 to 1 on machine-1", "rank 2 on machine-2", "rank 3 on machine-3"]
    targets = [
        ProbeTarget(host, 1, b"") for host in (first.other_address, "10.77.0.2", "10.77.0.3")
    ]
    with pytest.raises(SettingsError) as caught:
        check_reachability(names, targets, reasons)
    [_, line] = str(caught.value).splitlines()
    assert line.startswith(
        f"{first.other_address} of ranks 0 to 1 on machine-1 cannot be reached from "
        f"rank 2 on machine-2, rank 3 on machine-3: {LATE}; start its agent with --host-ip"
    )


def test_an_address_of_another_machine_is_refused_before_anything_listens(network):
    first, second, third = addresses(network)
    with ProbingMachines(network.machines, [second, second, third]) as machines:
        refusal, *targets = machines.targets()
        assert f"cannot listen on {second}" in refusal
        assert f"{first} on quire0" in refusal
        assert [target.host for target in targets] == [second, third]
        listening = [machine.listeners() for machine in network.machines]
    assert listening == [[], *([(target.host, target.port)] for target in targets)]
    assert [machine.listeners() for machine in network.machines] == [[]] * 3
