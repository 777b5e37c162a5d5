#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# run.sh: long
# powercut_two.sh - powercut.sh with a second disk that has half of the segment files.
KVFS_DISKS=2 KVFS_IMAGES=${KVFS_IMAGES:-80} exec "$(dirname "$(realpath "$0")")/powercut.sh"
