"""Counts the instructions of vCPUs: perf events under KVM, a QEMU plugin under TCG."""
