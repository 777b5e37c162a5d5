#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# run.sh: long
# powercut_xfs.sh - powercut.sh on XFS.
exec "$(dirname "$(realpath "$0")")/powercut.sh" xfs
