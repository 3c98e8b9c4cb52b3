# SPDX-License-Identifier: Apache-2.0
"""What tests share, from small to large. A FAKE says so in its own docstring.

Values made up for unit tests:

* ``hosts``: small hosts for the control loop, with a fake ``Sensor`` and ``Actuator`` in memory
* ``reports``, ``host_reports``: records of control cycles; reports of hosts to schedulers
* ``calibrations``, ``counter_profiles``, ``machines``: what calibration, counters and CPUs say
* ``nova_requests``, ``clouds``, ``tenant``: what Nova, OpenStack's services and tenants ask and say

Machines without guests:

* ``trees``: files in which a machine reports its facts
* ``fakehost``: ``/proc``, cgroups and pid files of a compute node in a folder
* ``perf_events``, ``pcpu``: software events for hardware's; a pCPU as a guest sees it
* ``stands``: ordinary processes in real cgroups, as domains of libvirt's test driver
* ``agents_served``: agents on simulated hosts, which serve their metrics

Machines and services as they are:

* ``lab``: real guests and agents; ``programs``: processes, and conditions to wait for
* ``broker``, ``scheduler``: RabbitMQ, a scheduler's end of the bus
* ``monitoring``: Prometheus' programs, and what operators' files may name

Searches for faults:

* ``packing_hosts``, ``exact_packing``: random hosts, and what could be packed on one at best
* ``policy_runs``: a policy without the rest of the loop
* ``hostile``, ``wrong_documents``, ``chain``, ``fuzz``: others' input, made wrong
* ``ptrace``: a process that ends at any of its system calls; ``fault_table``: the table of faults

Text: ``documented`` (commands in the documentation), ``tables`` (as commands print them).
"""
