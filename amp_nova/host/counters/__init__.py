# SPDX-License-Identifier: Apache-2.0
"""Counts the instructions of vCPUs: perf events under KVM, a QEMU plugin under TCG."""
