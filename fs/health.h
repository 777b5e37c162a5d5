/* SPDX-License-Identifier: Apache-2.0 */
/*
 * health.h - `kvfs --health`: check that a daemon answers on its mount and on its
 * socket, and that its SSD works.
 */
#ifndef KV_FS_HEALTH_H
#define KV_FS_HEALTH_H

/* Run `kvfs --health` with MOUNTPOINT or SOCKET in argv[0], and the time limit in
 * seconds in argv[1] if @argc is 2.  Prints one line and returns the exit status:
 *   0  the daemon answers and its SSD works
 *   1  the daemon does not answer, or the command line is wrong
 *   3  the daemon answers, but its SSD does not work */
int kv_health_main(int argc, char **argv);

#endif
