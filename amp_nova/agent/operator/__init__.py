# SPDX-License-Identifier: Apache-2.0
"""The operator's commands: status, explain, pause, resume, release.

Commands that change something use files, which survive the agent; the control socket is read-only.
"""
