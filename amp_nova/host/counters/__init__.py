# SPDX-License-Identifier: Apache-2.0
"""Counts the instructions of vCPUs: perf events under KVM, an installed plugin under TCG."""
