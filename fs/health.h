/* SPDX-License-Identifier: Apache-2.0 */
/*
 * health.h - `kvfs --health`: whether a daemon answers on its mount and on its
 * socket, and whether its SSD works.
 */
#ifndef KV_FS_HEALTH_H
#define KV_FS_HEALTH_H

/* @argv: MOUNTPOINT or SOCKET, then SECONDS if @argc is 2.  Prints one line and
 * returns the exit status:
 *   0  the daemon answers and its SSD works
 *   1  the daemon does not answer, or the command line is wrong
 *   3  the daemon answers, and its SSD does not work
 */
int kv_health_main(int argc, char **argv);

#endif
